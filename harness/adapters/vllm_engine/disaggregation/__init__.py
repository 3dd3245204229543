"""vLLM's connectors without an engine around them: workers of any sizes, and their transfers.

In: sizes of both sides, prompts. Out: the content of every slot. vLLM's own are the planning of
pools and caches, the layouts, the checks of both sides, the plans of copies, and the work after a
transfer; the copies, and the block ids that a scheduler would pass on, are ours. Imports the
adapter's plugin and settings. Engine environment only.
"""
