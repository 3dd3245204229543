"""Black-box checks of a running OpenAI-compatible server, by prompts with common prefixes.

In: the URL of a server. Out: verdicts with requests and answers. Imports `framework` and the
records.
"""
