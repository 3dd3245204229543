"""Requests that hit, and their expected logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kvproof.reference.model_runner.oracle import Schedule, Truth, truth
from kvproof.reference.model_runner.runner import Mode
from kvproof.reference.model_runner.specs import Probe
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.prompts import longer, with_picture
from kvproof.suites.tests.lab.parity.run import CHUNK, Prompt, Run, Served

TOLERANCE = 1e-3
"""Share of the largest logit that the shape of a batch may change in float32."""
ANSWER = 8


class Outcome(NamedTuple):
    """Result of a level."""

    difference: float
    """The largest, in logits or in the values that the level compares."""
    limit: float
    """The largest that passes; 0: equal bit by bit."""
    wrong: str = ""
    """Other errors; empty if there are none."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the level holds; NaN never does."""
        return self.difference <= self.limit and not self.wrong


class Subject(NamedTuple):
    """One tiny model."""

    name: str
    model: Any
    probe: Probe
    image: bool

    @property
    def stateful(self) -> bool:
        """Whether it has recurrent states."""
        return any(layer.states for layer in self.probe.layers)

    @property
    def parts(self) -> set[str]:
        """Return the names of its cached parts per token."""
        return {part.name for layer in self.probe.layers for part in layer.tokens}

    @property
    def attends(self) -> bool:
        """Whether it caches anything per token."""
        return bool(self.parts)

    def prompt(self, writer: Writer, before: int, after: int, *, seed: int) -> Prompt:
        """Write a prompt; models that take images get one between the two texts."""
        texts = writer.text(before), writer.text(after)
        if self.image:
            return with_picture(self.model, texts[0], seed, texts[1])
        return Prompt((*texts[0], *texts[1]))


def with_hits(subject: Subject, *, mode: Mode, **options: Any) -> tuple[Run, list[Served]]:
    """Serve a prompt, a fork of it, and the next turns of both, one by one.

    No request recomputes an indexed block: the index's block, equal only up to rounding, would
    replace it. Recurrent models would, where blocks go on after the last checkpoint; so their fork
    ends before its next block is full.
    """
    writer, run = Writer(2), Run(subject.model, mode=mode, **options)
    system = subject.prompt(writer, 70, 2 * CHUNK - 4, seed=3)
    first = longer(system, writer.text(30 if subject.stateful else 37))
    served = run.serve([first], answer=ANSWER)
    shared = len(system.tokens) // CHUNK * CHUNK
    rest = 4 if subject.stateful else 12
    fork = Prompt((*system.tokens[:shared], *writer.text(rest)), system.pictures)
    served += run.serve([fork], answer=ANSWER)
    for turn in list(served):
        again = longer(turn.asked, (*turn.answer, *writer.text(19)))
        served += run.serve([again], answer=ANSWER)
    return run, served


def spliced(served: Sequence[Served]) -> list[tuple[Served, Schedule]]:
    """Prepend to each request's forwards those that computed its hit."""
    whole: list[tuple[Served, Schedule]] = []
    for each in served:
        whole.append((each, [*_before(each, whole), *each.schedule]))
    return whole


def _before(each: Served, earlier: Sequence[tuple[Served, Schedule]]) -> Schedule:
    for donor, schedule in earlier:
        ends = [stop for _, stop in schedule]
        same = donor.tokens[: each.hit] == each.tokens[: each.hit]
        if same and each.hit in ends:
            return schedule[: ends.index(each.hit) + 1]
    assert not each.hit, f"no forward ended where the hit of {each.hit} tokens did"
    return []


def against(
    subject: Subject,
    served: Sequence[tuple[Served, Schedule]],
    *,
    limit: float,
    detail: str = "",
) -> Outcome:
    """Compare logits from the hit on, and tokens, with a model that reuses nothing."""
    difference, scale, wrong = 0.0, 0.0, ""
    for each, schedule in served:
        right = truth(subject.model, each.tokens, schedule, pictures=each.asked.pictures)
        expected = right.logits[each.hit :]
        difference = max(difference, largest(expected, each.logits))
        scale = max(scale, float(expected.abs().max()))
        wrong = wrong or _other_tokens(each, right, limit * scale)
    return Outcome(difference, limit * scale, wrong, detail)


def largest(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference; infinite for NaN."""
    difference = (left.double() - right.double()).abs().max()
    return float(torch.nan_to_num(difference, nan=float("inf")))


def _other_tokens(each: Served, right: Truth, close: float) -> str:
    """Return which token differs although the model preferred it by more than `close`."""
    first = len(each.asked.tokens) - 1
    for place, token in enumerate(each.answer):
        row = right.logits[first + place]
        if float(row.max() - row[token]) > close:
            return f"token {place} of an answer is {token}, not {int(row.argmax())}"
    return ""
