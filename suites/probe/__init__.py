"""Black-box checks of a running OpenAI-compatible server, by prompts that share what they share.

In: the URL of a server. Out: verdicts with requests and answers.
Imports `framework` and the records.
"""
