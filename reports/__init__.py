"""Run records for people: terminal, one-file HTML, Markdown, JUnit.

In: run directories. Out: text and files.
Imports `harness.records` and `harness.analysis`; never kernels, reference, suites or the command
line.
"""
