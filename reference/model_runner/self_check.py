"""Self-check: whether transformers, and then the runner, computes a family correctly.

A difference has two possible causes. If transformers alone gives another result when a prompt is
cut into chunks, no engine can be right on this family, and the fault is upstream. Otherwise, if the
runner differs from its `DynamicCache` on the same chunks, the fault is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import transformers

from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model_runner.oracle import Schedule, truth
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config
from kvproof.reference.model_runner.specs import UnsupportedModel

LENGTH, CHUNK, ANSWER = 44, 16, 4
"""Tokens of the prompt, of a chunk, and of the answer."""
BLOCKS, STATES = 8, 4
"""Room for each group, and for states, in the pool: a large model has large blocks."""
TOLERANCE = 1e-3
"""Of the largest logit, in float32; with fewer bits rounding alone may choose other experts."""
CHUNKS: Schedule = [(0, 16), (16, 32), (32, 44)]
ONE_BY_ONE: Schedule = [(0, 32), *((n, n + 1) for n in range(32, LENGTH))]


class Finding(NamedTuple):
    """Result of one comparison."""

    name: str
    difference: float
    limit: float
    upstream: bool
    """Whether transformers was compared with itself."""

    @property
    def passed(self) -> bool:
        """Return whether it holds."""
        return self.difference <= self.limit


class SelfCheck(NamedTuple):
    """All comparisons of one model."""

    family: str
    findings: tuple[Finding, ...]

    @property
    def problem(self) -> str:
        """Return the cause of the first failure; empty if there is none."""
        for finding in self.findings:
            if not finding.passed:
                return self._blame(finding)
        return ""

    def _blame(self, finding: Finding) -> str:
        size = f"{finding.name} changes logits by {finding.difference:.1e}"
        version = f"transformers {transformers.__version__}"
        if finding.upstream:
            return f"family {self.family} is wrong in {version}: {size}"
        return f"the runner does not reproduce family {self.family} of {version}: {size}"


def self_check(model: Any) -> SelfCheck:
    """Compare transformers with itself, and the runner with transformers."""
    tokens = _tokens(model)
    whole = truth(model, tokens).logits
    again = truth(model, tokens, CHUNKS).logits
    findings = [_upstream("the same prompt twice", again, truth(model, tokens, CHUNKS).logits, 0)]
    if next(model.parameters()).dtype in (torch.float32, torch.float64):
        limit = TOLERANCE * float(whole.abs().max())
        named: Sequence[tuple[str, Schedule]] = (
            ("a prompt in chunks", CHUNKS),
            ("a prompt token by token", ONE_BY_ONE),
        )
        for name, schedule in named:
            pieces = again if schedule is CHUNKS else truth(model, tokens, schedule).logits
            findings.append(_upstream(name, whole, pieces, limit))
    findings.append(_reproduced(model, tokens))
    return SelfCheck(model.config.model_type, tuple(findings))


def require(check: SelfCheck) -> None:
    """Raise UnsupportedModel if a check has failed."""
    if check.problem:
        raise UnsupportedModel(check.problem)


def _tokens(model: Any) -> list[int]:
    """Return a prompt of different tokens, usually none of them special."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return [int(size * (3 + n) / (2 * LENGTH)) for n in range(LENGTH)]


def _upstream(name: str, left: torch.Tensor, right: torch.Tensor, limit: float) -> Finding:
    return Finding(name, _largest(left, right), limit, upstream=True)


def _reproduced(model: Any, tokens: Sequence[int]) -> Finding:
    """Run the engine; its logits must be those of a `DynamicCache` bit by bit."""
    segments: list[tuple[int, torch.Tensor]] = []

    def keep(_: str, start: int, logits: torch.Tensor) -> None:
        segments.append((start, logits))

    config = cache_config(model, num_blocks=2, block_size=CHUNK)
    room = BLOCKS * len(config.groups) + STATES * config.layout.state_blocks
    config = replace(config, num_blocks=room)
    runner = HuggingFaceModel(model, config, on_logits=keep)
    answer = Engine(EngineConfig(config, CHUNK, poison_freed=True), runner).generate(
        [tokens], max_new_tokens=ANSWER
    )[0]
    schedule = [(start, start + len(logits)) for start, logits in segments]
    right = truth(model, [*tokens, *answer[:-1]], schedule).logits
    ours = torch.cat([logits for _, logits in segments])
    return Finding("paging", _largest(right, ours), 0, upstream=False)


def _largest(left: torch.Tensor, right: torch.Tensor) -> float:
    difference = (left.double() - right.double()).abs().max()
    return float(torch.nan_to_num(difference, nan=float("inf")))
