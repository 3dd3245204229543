"""Sweeps of kernels: correctness, then time, over axes and providers.

In: kernels, cells, providers. Out: one event for each cell.
Imports `isolation`, `records`, `analysis`; kernels in the worker process.
"""
