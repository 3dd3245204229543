"""Memory plan of a model: layer groups, block sizes, block counts.

In: a Hugging Face configuration or layer specifications, and bytes of memory. Out: a `Plan`.
Imports `core`.
"""
