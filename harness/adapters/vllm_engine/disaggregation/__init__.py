"""vLLM's Nixl connector without an engine around it: workers of any sizes, and what they send.

In: sizes of both sides, prompts. Out: the content of every slot. vLLM's own are the planning of
pools and caches, the layouts, the handshake, the descriptors, and what follows a transfer; the
copies, and the numbers of blocks that a scheduler would pass on, are ours. Engine environment only.
"""
