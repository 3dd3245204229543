"""Component suite `explain`: the reasons for hit lengths, against brute force (V3).

In: contents and requests. Out: verdicts. Imports `framework`, `hit_length` and `reference.observe`.
"""
