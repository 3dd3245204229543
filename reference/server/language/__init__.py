"""Text and images for the server: tokenizers, chat templates, sampling.

In: messages of a request. Out: tokens and media spans, and text from tokens.
Imports the model runner and the engine's interface, nothing of `server` above it.
"""
