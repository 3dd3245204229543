"""Component suite `media`: identity of media, and spans in hits and steps (M1 to M5).

In: spans and chunks. Out: verdicts. Imports `framework` and `reference.core`.
"""
