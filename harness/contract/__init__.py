"""The contract of a target: records, operations, the `Target` protocol, its profile.

In: an adapter implements it. Out: frozen records in the field's terms.
Imports `harness.errors` only; `whole_engine` numpy for its types.
"""
