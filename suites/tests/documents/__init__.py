"""Generators of the tables and pages in docs/: `make docs`. Not shipped."""
