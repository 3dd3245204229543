"""Mutation testing of the control plane: `make mutants`. Not shipped."""
