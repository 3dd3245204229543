"""Sweep of prefill attention over drafts that branch; the kernel is that of `paged_prefill`.

In: cells. Out: inputs, the right answer, the least work.
Imports the sweep of paged prefill.
"""
