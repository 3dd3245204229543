"""The levels of parity, the strictest first.

Logits are compared at all positions: greedy tokens alone hardly show a wrong cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

from kvproof.reference.model_runner.experts import replayed
from kvproof.reference.model_runner.oracle import truth
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.compare import (
    ANSWER,
    TOLERANCE,
    Outcome,
    Subject,
    against,
    largest,
    spliced,
    with_hits,
)
from kvproof.suites.tests.lab.parity.prompts import longer, with_picture
from kvproof.suites.tests.lab.parity.run import BLOCK, CHUNK, Prompt, Run
from kvproof.suites.tests.lab.parity.tier_roundtrip import tiers

TIGHT = 26
"""Blocks of a pool in which requests preempt each other."""


Check: TypeAlias = Callable[[Subject], Outcome]


# --- exact mode ---


def exact(subject: Subject) -> Outcome:
    """Without reuse, in one batch: equal to a `DynamicCache` with the same chunks."""
    writer, run = Writer(1), Run(subject.model)
    prompts = [
        subject.prompt(writer, 101, 49, seed=1),
        Prompt(writer.text(5)),
        subject.prompt(writer, 30, 3, seed=2),
    ]
    served = run.serve(prompts, answer=ANSWER)
    return against(subject, [(each, each.schedule) for each in served], limit=0)


def hits(subject: Subject) -> Outcome:
    """After hits and restored checkpoints: equal to the same chunks without any reuse."""
    _, served = with_hits(subject, mode="exact")
    hit = [each.hit for each in served]
    outcome = against(subject, spliced(served), limit=0, detail=f"hits {hit}")
    return outcome if min(hit[1:]) > 0 else outcome._replace(wrong=f"hits {hit}: some are none")


# --- batched mode ---


def batched(subject: Subject) -> Outcome:
    """Rows together, with hits: close to one forward over everything, and the same tokens."""
    pool = {"state_pool": "separate", "prefix_cache_state_budget": 32} if subject.stateful else {}
    run, served = with_hits(subject, mode="batched", **pool)
    writer = Writer(3)
    prompts = [longer(each.asked, writer.text(3 + 9 * n)) for n, each in enumerate(served)]
    prompts += [Prompt(writer.text(n)) for n in (1, 17, 40, 40)]
    before = run.model.forwards, run.model.computed
    served += run.serve(prompts, answer=ANSWER)
    calls, tokens = run.model.forwards - before[0], run.model.computed - before[1]
    detail = f"{tokens} tokens in {calls} forwards, hits {[each.hit for each in served]}"
    return against(subject, [(each, ()) for each in served], limit=TOLERANCE, detail=detail)


def tight(subject: Subject) -> Outcome:
    """In a pool too small for all, with preemptions: still the same tokens."""
    writer, state = Writer(4), _state_blocks(subject)
    run = Run(subject.model, num_blocks=TIGHT + 4 * state)
    prompts = [subject.prompt(writer, 30 + n, 40, seed=n) for n in range(4)]
    served = run.serve(prompts, answer=3 * BLOCK)
    outcome = against(subject, [(each, ()) for each in served], limit=TOLERANCE)
    lost = run.preemptions
    detail = f"{lost} preemptions"
    return outcome._replace(detail=detail, wrong=outcome.wrong or ("" if lost else detail))


def _state_blocks(subject: Subject) -> int:
    return Run(subject.model).engine.config.cache.layout.state_blocks if subject.stateful else 0


# --- content ---


def same_bytes(subject: Subject) -> Outcome:
    """Entries and states of a request that hit equal those of one that computed everything."""
    _, served = with_hits(subject, mode="exact")
    fork = served[1]
    alone = Run(subject.model).serve([fork.asked], answer=ANSWER)[0]
    tail = [step for step in alone.schedule if step[0] >= fork.hit]
    if list(fork.schedule) != tail:
        return Outcome(0, 0, f"other chunks: {fork.schedule} and {tail}")
    one, other = ((*each.content.entries, each.content.state) for each in (fork, alone))
    different = sum(left != right for left, right in zip(one, other, strict=True))
    count = sum(map(bool, one))
    return Outcome(different, 0, detail=f"{count} tensors, {fork.hit} tokens reused")


# --- experts ---


def experts(subject: Subject) -> Outcome:
    """Rows of requests that hit equal those of one forward over everything (R2)."""
    _, served = with_hits(subject, mode="exact")
    different = total = 0
    for each in served:
        right = truth(subject.model, each.tokens, pictures=each.asked.pictures).experts
        assert right is not None
        if each.experts is None or each.experts.missing:
            return Outcome(0, 0, f"rows are missing: {each.experts}")
        rows = torch.as_tensor(each.experts.rows.astype("int64"), device=right.device)
        different += int((rows.sort(-1)[0] != right.sort(-1)[0]).any(-1).sum())
        total += rows.shape[0] * rows.shape[1]
    return Outcome(different, 0, detail=f"{total} choices")


def replay(subject: Subject) -> Outcome:
    """A forward with the recorded choices equals the one that made them (R4)."""
    tokens = Writer(5).text(60)
    free = truth(subject.model, tokens)
    assert free.experts is not None
    with replayed(subject.model, free.experts[None]):
        forced = truth(subject.model, tokens)
    others = free.experts.roll(1, 0)
    with replayed(subject.model, others[None]):
        moved = truth(subject.model, tokens)
    assert moved.experts is not None
    obeyed = torch.equal(moved.experts, others)
    away = largest(moved.logits, free.logits)
    wrong = "" if obeyed and away else "other choices were not followed"
    detail = f"other choices move logits by {away:.1f}"
    return Outcome(largest(forced.logits, free.logits), 0, wrong, detail)


# --- images ---


def images(subject: Subject) -> Outcome:
    """Equal tokens with other pixels share nothing; hits are not encoded again (M1, M5)."""
    writer, run = Writer(6), Run(subject.model)
    head, tail = writer.text(CHUNK + 4), writer.text(40)
    left, right = (with_picture(subject.model, head, seed, tail) for seed in (1, 2))
    served = run.serve([left], answer=ANSWER) + run.serve([right], answer=ANSWER)
    outcome = against(subject, spliced(served), limit=0)
    again = run.serve([longer(left, writer.text(9))], answer=ANSWER)[0]
    count = len(left.tokens) - served[1].hit
    ends = [each.logits[: len(left.tokens) - each.hit][-count:] for each in served]
    pixels = largest(*ends)
    problems = (
        (served[1].hit > len(head), f"a hit of {served[1].hit} tokens has other pixels"),
        (run.model.images.encoded != 2, f"{run.model.images.encoded} encoder runs for 2 images"),
        (again.hit <= len(head), f"a hit of {again.hit} tokens ends before the image"),
        (not pixels, "other pixels change nothing"),
    )
    wrong = next((text for found, text in problems if found), outcome.wrong)
    detail = f"hits {[each.hit for each in (*served, again)]}, pixels move logits by {pixels:.1f}"
    return outcome._replace(wrong=wrong, detail=detail)


class Level(NamedTuple):
    """One column of the table."""

    name: str
    check: Check
    applies: Callable[[Subject], bool]
    bitwise: bool = False
    """Whether it compares bits. Only that means anything in 16-bit types, where the rounding of
    another shape already chooses other experts."""

    def fits(self, dtype: str) -> bool:
        """Whether the level applies to a type."""
        return self.bitwise or dtype in ("float32", "float64")


def _always(_: Subject) -> bool:
    return True


def _routes(subject: Subject) -> bool:
    return subject.probe.experts[1] > 0


LEVELS: tuple[Level, ...] = (
    Level("exact", exact, _always, bitwise=True),
    Level("hits", hits, _always, bitwise=True),
    Level("bytes", same_bytes, _always, bitwise=True),
    Level("batched", batched, _always),
    Level("tight", tight, lambda subject: subject.attends),
    Level("tiers", tiers, _always, bitwise=True),
    Level("experts", experts, _routes),
    Level("replay", replay, _routes, bitwise=True),
    Level("images", images, lambda subject: subject.image, bitwise=True),
)
