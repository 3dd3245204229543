"""The next token from logits: greedy, or drawn so that a seed gives the same answer again."""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

from kvproof.reference.server.language.language import SamplingOptions, Score


class NoNumbers(RuntimeError):
    """Logits hold NaN: the step read memory that was never written, or was freed."""


class Chosen(NamedTuple):
    """A token, and the details that were requested."""

    token: int
    score: Score | None


def choose(sampling: SamplingOptions, position: int, logits: torch.Tensor) -> Chosen:
    """Choose from logits [vocabulary], by them, seed and position alone. Raises NoNumbers."""
    logits = logits.float().cpu()
    if torch.isnan(logits).any():
        raise NoNumbers(f"the logits before position {position} hold NaN")
    token = _draw(sampling, position, logits) if sampling.temperature else int(logits.argmax())
    if sampling.top_logprobs is None:
        return Chosen(token, None)
    return Chosen(token, score(logits, token, sampling.top_logprobs))


def score(logits: torch.Tensor, token: int, top: int) -> Score:
    """Return the log-probabilities of a token and of the `top` likeliest."""
    logprobs = logits.float().cpu().log_softmax(-1)
    best = logprobs.topk(min(top, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return Score(token, float(logprobs[token]), tuple(pairs))


def _draw(sampling: SamplingOptions, position: int, logits: torch.Tensor) -> int:
    """Draw from the smallest set of tokens that has `top_p` of the probability."""
    chances, tokens = (logits.double() / sampling.temperature).softmax(-1).sort(descending=True)
    before = chances.cumsum(-1) - chances
    chances = chances.where(before < sampling.top_p, 0)
    reached = chances.cumsum(-1)
    dice = random.Random(f"{sampling.seed} {position}").random()  # noqa: S311 - reproducible by wish
    index = int(torch.searchsorted(reached, dice * float(reached[-1]), right=True))
    return int(tokens[min(index, int((chances > 0).sum()) - 1)])
