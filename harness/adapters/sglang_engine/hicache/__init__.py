"""HiCache under SGLang's own loop: its host pools have real bytes, its copies end late.

In: an engine with the connector `hicache`. Out: transfers of the shadow device. Imports
`harness.whole_engine` and the parts of `sglang_engine` above it; SGLang inside functions.
"""
