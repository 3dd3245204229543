"""Component suite `parity`: reuse changes no result of tiny models of real families (S4, R4).

In: families, prompts. Out: verdicts. Imports `framework` and `reference.model_runner`.
"""
