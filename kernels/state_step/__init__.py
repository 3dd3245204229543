"""Decode steps of recurrent layers on paged states: gated delta rule and Mamba2 (S4).

In: the new tokens of a ragged batch, pools of states, lists of their rows. Out: the layer's output,
states. Imports the kernels' common modules.
"""

from kvproof.kernels.state_step.launch import gated_delta_step, mamba2_step

__all__ = ["gated_delta_step", "mamba2_step"]
