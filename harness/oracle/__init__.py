"""The state of the world as the harness knows it, and the driver of one history.

In: operations and a target's answers. Out: the first violation, and which situations occurred.
Imports `contract`.
"""
