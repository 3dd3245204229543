"""The properties, the project's own tests, and the corpus of op logs.

In: a target or a subsystem of the reference. Out: verdicts with minimal histories. Imports the
harness without its command line; component suites import the code under test.
"""
