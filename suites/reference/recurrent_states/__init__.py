"""Component suite `states`: recurrent states and checkpoints, against sets (S1 to S10).

In: histories. Out: verdicts. Imports `framework` and `reference.states`.
"""
