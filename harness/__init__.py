"""The contract, the adapters, the oracle, the records and the command line.

In: a target. Out: violations, timings, run directories.
Imports the reference in its adapter and its commands only; `suites`, `reports` and `eval` only from
`cli`.
"""
