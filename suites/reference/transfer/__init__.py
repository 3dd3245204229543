"""Component suite `transfer`: grouped transfers, against an index oracle (G1 to G6, G9, G10).

In: geometries and chunks. Out: verdicts. Imports `framework`, `reference.transfer` and
`cache_server`.
"""
