"""Target contract, adapters, shadow memory, workloads, run records and the command line."""
