"""Model runner V2 on the shadow device: its requests, batch, tables and kernels, run on a CPU.

Enters: scheduler outputs and what the device answered. Leaves: launches. May import: the adapter,
`harness.whole_engine`, and vLLM in its own environment.
"""
