"""Verbs that run until a signal: `kvproof serve`, a model over HTTP, and `kvproof watch`.

In: `ServeOptions`, or a command; out: a running server, or the verdict on one. May import every
layer below the command line.
"""
