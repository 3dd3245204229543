"""Component suites: the reference's own subsystems, each judged against a model.

In: a component suite for each folder. Out: verdicts. Imports `framework` and the subsystem that it
judges.
"""
