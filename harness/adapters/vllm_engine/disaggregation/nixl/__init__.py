"""vLLM's Nixl connector for workers of one process: its handshake and its reads.

In: workers of both sides. Out: moved prompts. The copies are ours. Imports the folder's workers.
"""
