"""Component suite `evaluation`: requests to a server and the records of its answers (E1 to E3).

In: scripted servers. Out: verdicts. Imports `framework` and `eval`.
"""
