"""Component suite `prefixes`: prefixes stored as chunks, of any store server (G6 to G10).

In: histories of stores, look-ups and retrieves. Out: verdicts. Imports `framework`; the subject is
the target's own implementation.
"""
