"""Component suite `disaggregation`: pieces of a prompt between engines of unlike sizes (D1, D3).

In: sizes and layouts of both sides, and prompts. Out: verdicts by the content of every slot.
Imports `framework`; the subject is the reference's plan, or the connector of a target.
"""
