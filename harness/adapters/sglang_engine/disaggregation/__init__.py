"""SGLang's Mooncake managers without an engine around them: workers of any sizes, and their sends.

In: sizes of both sides, prompts. Out: the content of every slot. SGLang's own are the pools, the
registration, the ranks that talk to each other, the messages, the sender and the transfer worker;
the library that copies, the sockets, and the pages that a scheduler would pass on, are ours.
Imports the adapter's environment. Engine environment only.
"""
