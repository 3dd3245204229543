"""The verbs of `kvproof`: one module each, with its options, their help, and a call of its action.

In: words of the command line, parsed by cyclopts; out: an exit code. These modules import no
suites, reports or numpy at load time, so that `kvproof --help` may import them all.
"""
