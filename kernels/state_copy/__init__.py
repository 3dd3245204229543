"""Copies of recurrent states between slots of many pools in one launch (S3).

In: pools and lists of slots. Out: pools.
Imports the kernels' common modules.
"""
