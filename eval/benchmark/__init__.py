"""LongBench v2: data, prompts, truncation, extraction, score.

In: the public data set or samples of our own. Out: prompts and scored answers.
Imports `harness.errors`.
"""
