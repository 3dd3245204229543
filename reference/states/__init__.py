"""Slots of recurrent state and their checkpoints.

In: lengths where a state may be saved or restored. Out: slots, copies, checkpoints.
Imports `core` and `prefix`.
"""
