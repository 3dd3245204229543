"""The next token from logits: greedy, or drawn so that a seed gives the same answer again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvproof.reference.server.language.language import SamplingOptions, Score, plain


class NoNumbers(RuntimeError):
    """Logits hold NaN: the step read memory that was never written, or was freed."""


class Chosen(NamedTuple):
    """A token, and the details that were requested."""

    token: int
    score: Score | None


def choose(
    sampling: SamplingOptions, tokens: Sequence[int], prompt: int, logits: torch.Tensor
) -> Chosen:
    """Choose the token after `tokens`, the first `prompt` of which the client sent.

    By logits [vocabulary], tokens, seed and position alone. The score is that of the logits as the
    model gave them. Raises NoNumbers.
    """
    logits = logits.float().cpu()
    if torch.isnan(logits).any():
        raise NoNumbers(f"the logits before position {len(tokens)} hold NaN")
    changed = logits if plain(sampling) else penalized(sampling, tokens, prompt, logits)
    greedy = not sampling.temperature
    token = int(changed.argmax()) if greedy else _draw(sampling, len(tokens), changed)
    if sampling.top_logprobs is None:
        return Chosen(token, None)
    return Chosen(token, *score_rows(logits[None], [token], sampling.top_logprobs))


ROWS = 256
"""Positions that are scored together: at most so many rows of the vocabulary are copied."""
LEAST = -9999.0
"""Log-probability of an impossible token: JSON has no infinity, and vLLM writes this."""


def score_rows(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Score]:
    """Score one token for each row of logits [tokens, vocabulary], with the `top` likeliest."""
    found: list[Score] = []
    for start in range(0, len(tokens), ROWS):
        found += _score_some(logits[start : start + ROWS], tokens[start : start + ROWS], top)
    return found


def _score_some(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Score]:
    logprobs = logits.float().cpu().log_softmax(-1).clamp_min(LEAST)
    own = logprobs.gather(-1, torch.tensor(tokens)[:, None])
    ranks = (logprobs >= own).sum(-1).tolist()
    best = logprobs.topk(min(top, logprobs.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        Score(token, chance, tuple(zip(*pair, strict=True)), rank)
        for token, chance, pair, rank in zip(tokens, own[:, 0].tolist(), pairs, ranks, strict=True)
    ]


def penalized(
    sampling: SamplingOptions, tokens: Sequence[int], prompt: int, logits: torch.Tensor
) -> torch.Tensor:
    """Return logits [vocabulary] with biases and penalties, in vLLM's order."""
    logits = logits.clone()
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    known = torch.zeros(len(logits), dtype=torch.bool)
    known[[token for token in tokens if token < len(logits)]] = True
    factor = sampling.repetition_penalty
    repeated = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(known, repeated, logits)
    counts = torch.tensor(tokens[prompt:], dtype=torch.int64).bincount(minlength=len(logits))
    logits -= sampling.frequency_penalty * counts
    logits -= sampling.presence_penalty * (counts > 0)
    return logits


def kept(sampling: SamplingOptions, logits: torch.Tensor) -> torch.Tensor:
    """Rule out tokens by `min_p` and `top_k`, in vLLM's order; ties with the last one stay."""
    if sampling.min_p:
        chances = logits.softmax(-1)
        logits = logits.masked_fill(chances < sampling.min_p * chances.max(), -torch.inf)
    if 0 < sampling.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    return logits


def _draw(sampling: SamplingOptions, position: int, logits: torch.Tensor) -> int:
    """Draw from the smallest set of the tokens kept that has `top_p` of their probability."""
    scaled = kept(sampling, logits.double() / sampling.temperature)
    chances, tokens = scaled.softmax(-1).sort(descending=True)
    before = chances.cumsum(-1) - chances
    chances = chances.where(before < sampling.top_p, 0)
    reached = chances.cumsum(-1)
    dice = random.Random(f"{sampling.seed} {position}").random()  # noqa: S311 - reproducible by wish
    index = int(torch.searchsorted(reached, dice * float(reached[-1]), right=True))
    return int(tokens[min(index, int((chances > 0).sum()) - 1)])
