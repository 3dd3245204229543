"""vLLM 0.33.0 on a card: the loop of `vllm-engine` over vLLM's own worker, runner and kernels.

In: configurations and operations of whole engines. Out: the same findings, by three oracles:
*tables* (the shadow device executes each launch as the runner's tensors have it), *content* (the
canary, a registered layer of each group) and *answers* (logits against a cold engine). Imports
`adapters.vllm_engine`, the canary and torch, in the engine's own environment.
"""
