"""Whole engines over a shadow device: an engine's own loop, with our device under it.

In: `Row`s of what an engine's worker would run, histories of requests and time. Out: findings:
checks, situations, the first violation. Records and protocols stand in
`harness.contract.whole_engine`; `device` has the device, `driver` runs a history on any
`WholeEngine`. Imports numpy only and parses on Python 3.10: it runs where the engine lives. Rules W
and D of the semantics.
"""
