"""SCBench: several turns and several requests over shared contexts, hits against recomputes.

In: the public files or a generated miniature, servers. Out: records, a paired verdict.
Imports `run`, `benchmark`, `http` and the reports' values.
"""
