"""vLLM's Mooncake connector for workers of one process: its pulls, answers and copies.

In: workers of both sides. Out: moved prompts. vLLM's own are the registration, the messages, the
plans of copies and both schedulers' choice of blocks; sockets, threads and the copying library are
ours. Imports the folder's workers.
"""
