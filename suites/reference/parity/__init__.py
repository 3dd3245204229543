"""Component suite `parity`: reuse changes no result of tiny models of real families (S4, R4).

In: families, prompts. Out: verdicts and tables. Imports `framework` and `reference.model_runner`.
"""
