"""A real engine on a real card: oracles that watch the memory that its kernels read and write.

In: hooks on an engine's own calls, and its answers. Out: verdicts of three oracles: `tables` (the
arguments that the calls hand to kernels), content (the canary's words), `answers` (logits or
log-probabilities against a cold engine). Imports the canary, numpy and torch.
"""
