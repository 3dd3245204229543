"""Values and rules that the whole reference shares: identity, spans, settings.

In: plain numbers, tokens, settings. Out: frozen records, hashes, errors that name the value.
Imports nothing of the reference.
"""
