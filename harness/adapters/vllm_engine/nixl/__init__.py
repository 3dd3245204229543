"""NIXL in one process: modules that vLLM's Nixl connectors import in place of the library.

In: the calls of vLLM's connector workers. Out: copies and messages of a
`harness.whole_engine.linked.wire.Wire`. `agent` is the library's module, `connector` the
adapter's code for a connector of that kind. Imports `harness.whole_engine`; vLLM inside of
functions only.
"""
