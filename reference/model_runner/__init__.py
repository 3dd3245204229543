"""Unmodified Hugging Face models on paged memory.

In: scheduled rows and block tables. Out: logits, tokens, states, routed experts.
Imports `core`, `planner`, `model`, `transfer` and the kernels; torch and transformers.
"""
