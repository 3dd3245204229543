"""Component suite `pool`: a cache manager whose pool grows and shrinks while requests run (Q6).

In: prompts of few letters, and sizes. Out: verdicts by a model of contents and free ids. Imports
`framework`; the subject is `kvproof.reference.cache`.
"""
