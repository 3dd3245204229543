"""LongBench v2: data, prompts, truncation, extraction, score.

In: the public data set or synthetic samples. Out: prompts and scored answers.
Imports `harness.errors`.
"""
