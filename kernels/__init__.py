"""Triton kernels of a paged cache: each with its torch reference, its cost model and its sweep.

Needs the extra `gpu` (torch and Triton). Without a GPU the same kernels run in Triton's interpreter
(`TRITON_INTERPRET=1`, set before Triton is imported): correct, but slow.

In: tensors on a device. Out: tensors. Imports torch and Triton, nothing else of kvproof.
"""
