"""Component suite `sessions`: conversations that keep their blocks between turns (Q7).

In: texts of few letters, turns that end or are aborted, a clock. Out: verdicts by a model of held
blocks. Imports `framework`; the subject is `kvproof.reference.cache`.
"""
