"""Providers of kernels: ours, torch's, and those of installed engines.

In: a cell. Out: a launch.
Imports the kernels and, inside functions, the engines.
"""
