"""Model runner V2 on the shadow device: its requests, batch, tables and kernels, run on a CPU.

In: outputs of vLLM's scheduler. Out: launches of a shadow device, and the host's part of their
answers. `batch` is the runner, `kernels` launches its kernels, `language` are Triton's words.
Imports `harness.whole_engine` and vLLM, in its own environment.
"""
