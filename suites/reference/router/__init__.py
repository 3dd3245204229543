"""Component suite `router`: an index of several workers' blocks, against their caches (D5, W8).

In: histories of caches and of their messages' way. Out: verdicts. Imports `framework`; the subject
is the reference's router, or that of a target.
"""
