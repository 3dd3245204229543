"""`kvproof serve`: an engine with a model and its language, served over HTTP until a signal.

In: `ServeOptions`; out: a running server. May import every layer below the command line.
"""
