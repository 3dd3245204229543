"""Which tokens of a request a rank holds (Q4): t belongs to rank (t div interleave) mod ranks."""

from __future__ import annotations

import torch

from kvproof.kernels.checks import dtype_of, require, shape_of


def owned_lengths(
    lengths: torch.Tensor, *, q_tokens: int, interleave: int, ranks: int, rank: int
) -> torch.Tensor:
    """How many tokens each query token of a batch sees on a rank; made once a step.

    Args:
        lengths: [batch] int32, tokens of each request with its q_tokens, over all ranks.
        q_tokens: New tokens of each request; the last sees the whole context.
        interleave: Consecutive tokens that lie on one rank.
        ranks: Ranks of the group.
        rank: This one.

    Returns:
        [batch, q_tokens] int32; 0 where a token sees nothing of this rank, or does not exist.

    Raises:
        ArgumentError: A number is out of range.

    """
    shape_of("lengths", lengths, (None,))
    dtype_of("lengths", lengths, (torch.int32,))
    require(q_tokens > 0, f"q_tokens is {q_tokens}, expected 1 or more")
    _check(interleave, ranks, rank)
    back = torch.arange(1 - q_tokens, 1, dtype=torch.int32, device=lengths.device)
    seen = (lengths[:, None] + back).clamp_min(0)
    rounds, rest = seen // (interleave * ranks), seen % (interleave * ranks)
    return rounds * interleave + (rest - rank * interleave).clamp(0, interleave)


def owned_tokens(length: int, *, interleave: int, ranks: int, rank: int) -> list[int]:
    """The tokens of a request that lie on a rank, in the order of its slots."""
    _check(interleave, ranks, rank)
    return [t for t in range(length) if t // interleave % ranks == rank]


def _check(interleave: int, ranks: int, rank: int) -> None:
    require(interleave > 0, f"interleave is {interleave}, expected 1 or more")
    require(0 <= rank < ranks, f"rank is {rank} of {ranks}, expected 0 to {ranks - 1}")
