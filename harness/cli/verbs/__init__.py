"""The verbs of `kvproof`: one module each, with options, help, and the call of its action.

In: words of the command line, parsed by cyclopts; out: an exit code. These modules import no
suites, reports or numpy at load time, so that `kvproof --help` may import them all.
"""
