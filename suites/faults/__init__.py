"""Faults: small changes of the reference, each modelled on a bug that an engine had.

They measure the suites. A fault is data: a few lines of one module and their replacement. It is
planted when the module is imported in its own process; production code has no switches.

In: a catalogue of changes, a suite. Out: the property that finds each fault. Imports all suites.
"""
