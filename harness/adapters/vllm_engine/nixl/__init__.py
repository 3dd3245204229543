"""NIXL in one process: what vLLM's Nixl connectors import in place of the library.

In: the calls of vLLM's connector workers. Out: copies and messages of a
`harness.whole_engine.linked.wire.Wire`. `agent` is the library's module, `connector` what the
engine's adapter does with a connector of that kind. Imports `harness.whole_engine`; vLLM inside of
functions only.
"""
