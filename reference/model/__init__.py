"""The interface between engine and model, and a symbolic model without tensors.

In: scheduled rows. Out: tokens and log-probabilities.
Imports `core`.
"""
