"""vLLM's Nixl connector without an engine around it: workers of any sizes, and their transfers.

In: sizes of both sides, prompts. Out: the content of every slot. vLLM's own are the planning of
pools and caches, the layouts, the checks of the handshake, the descriptors, and the work after a
transfer; the copies, and the block ids that a scheduler would pass on, are ours. Imports the
adapter's plugin and settings. Engine environment only.
"""
