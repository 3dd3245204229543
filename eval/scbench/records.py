"""Options of a run, and its samples as answers to be judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.records import SampleRecord
from kvproof.eval.scbench.data import Task
from kvproof.harness.http.chat_completion import Outcome

KEY = "scbench"

Mode = Literal["turns", "requests"]
"""One conversation, in which own answers are fed back; or requests of their own."""

MODES: tuple[Mode, ...] = ("turns", "requests")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run."""

    tasks: tuple[Task, ...]
    modes: tuple[Mode, ...]
    sessions: int
    """Sessions of each task."""
    data: str = ""
    """Folder of public files; empty: the miniature."""
    margin: float = 0.1
    """Largest share of right answers (of texts, with that rule) whose loss a pass allows."""
    config: EvalConfig
    weights: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as it is judged."""

    configuration: str
    level: str
    """Load; empty for a recomputed answer, which is equal for all."""
    mode: Mode
    task: Task
    session: str
    turn: int
    prompt: str
    """SHA-256 of all messages: answers to the same ones are paired."""
    outcome: Outcome
    text: str
    score: float
    prompt_tokens: int | None
    cached_tokens: int | None


def answers_of(samples: Sequence[SampleRecord]) -> list[Answer]:
    """Return the answers that samples are; one without an answer has the score of no text."""
    return [
        Answer(
            configuration=each.configuration,
            level="" if each.phase == "recomputed" else each.phase,
            mode=msgspec.convert(each.sub_domain, Mode),
            task=msgspec.convert(each.domain, Task),
            session=each.id,
            turn=each.turn,
            prompt=each.prompt_sha256,
            outcome=each.outcome,
            text=each.text,
            score=float(each.answer or 0),
            prompt_tokens=each.usage.prompt_tokens,
            cached_tokens=each.usage.cached_tokens,
        )
        for each in samples
    ]


def stored(options: Options) -> dict[str, Any]:
    """Return the manifest's part of a run."""
    return {KEY: msgspec.to_builtins(options)}
