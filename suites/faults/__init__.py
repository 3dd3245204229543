"""Faults: small changes of the reference, each modelled on a bug that an engine had.

They measure what the suites are able to find. A fault is data: a few lines of one module and
what stands there instead. It is planted from outside, when the module is imported in a process
of its own; production code has no switches.

In: a catalogue of changes, a suite. Out: which property finds which fault. Imports all suites.
"""
