"""What parity means, from the strictest level on.

Logits are compared at all positions: greedy tokens alone are nearly blind to a wrong cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from kvproof.reference.model_runner.content import Content
from kvproof.reference.model_runner.experts import replayed
from kvproof.reference.model_runner.oracle import Schedule, Truth, truth
from kvproof.reference.model_runner.runner import Mode
from kvproof.reference.model_runner.specs import Probe
from kvproof.suites.parity.prompts import Writer, longer, with_picture
from kvproof.suites.parity.run import BLOCK, CHUNK, Asked, Run, Served

TOLERANCE = 1e-3
"""Of the largest logit: what the shape of a batch may change in float32."""
ANSWER = 8
"""Tokens per answer."""
TIGHT = 26
"""Blocks of a pool in which requests preempt each other."""


class Outcome(NamedTuple):
    """What a level found."""

    difference: float
    """The largest, in logits or in what the level compares."""
    limit: float
    """The largest that passes; 0: equal bit by bit."""
    wrong: str = ""
    """What else is wrong; empty if nothing is."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Tell whether the level holds; a difference that is no number never does."""
        return self.difference <= self.limit and not self.wrong


class Subject(NamedTuple):
    """One tiny model."""

    name: str
    model: Any
    probe: Probe
    image: bool

    @property
    def stateful(self) -> bool:
        """Tell whether it has recurrent states."""
        return any(layer.states for layer in self.probe.layers)

    @property
    def parts(self) -> set[str]:
        """Names of what it caches per token."""
        return {part.name for layer in self.probe.layers for part in layer.tokens}

    @property
    def attends(self) -> bool:
        """Tell whether it caches anything per token."""
        return bool(self.parts)

    def prompt(self, writer: Writer, before: int, after: int, *, seed: int) -> Asked:
        """Write a prompt; models that take images get one between the two texts."""
        texts = writer.text(before), writer.text(after)
        if self.image:
            return with_picture(self.model, texts[0], seed, texts[1])
        return Asked((*texts[0], *texts[1]))


Check: TypeAlias = Callable[[Subject], Outcome]


# --- exact mode ---


def exact(subject: Subject) -> Outcome:
    """Without reuse, side by side: equal to a `DynamicCache` that gets the same chunks."""
    writer, run = Writer(1), Run(subject.model)
    prompts = [
        subject.prompt(writer, 101, 49, seed=1),
        Asked(writer.text(5)),
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


def with_hits(subject: Subject, *, mode: Mode, **options: Any) -> tuple[Run, list[Served]]:
    """Serve a prompt, one that forks from it, and the next turns of both, one by one.

    No request computes a block that the index has: the block of the index would take its place,
    and is equal up to rounding only. Recurrent models would, where blocks go on behind the last
    checkpoint; so their fork ends before its next block is full.
    """
    writer, run = Writer(2), Run(subject.model, mode=mode, **options)
    system = subject.prompt(writer, 70, 2 * CHUNK - 4, seed=3)
    first = longer(system, writer.text(30 if subject.stateful else 37))
    served = run.serve([first], answer=ANSWER)
    shared = len(system.tokens) // CHUNK * CHUNK
    rest = 4 if subject.stateful else 12
    fork = Asked((*system.tokens[:shared], *writer.text(rest)), system.pictures)
    served += run.serve([fork], answer=ANSWER)
    for turn in list(served):
        again = longer(turn.asked, (*turn.answer, *writer.text(19)))
        served += run.serve([again], answer=ANSWER)
    return run, served


def spliced(served: Sequence[Served]) -> list[tuple[Served, Schedule]]:
    """Put before the forwards of each request those that computed what it hit."""
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
        difference = max(difference, _largest(expected, each.logits))
        scale = max(scale, float(expected.abs().max()))
        wrong = wrong or _other_tokens(each, right, limit * scale)
    return Outcome(difference, limit * scale, wrong, detail)


def _largest(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference; infinite if a value is no number."""
    difference = (left.double() - right.double()).abs().max()
    return float(torch.nan_to_num(difference, nan=float("inf")))


def _other_tokens(each: Served, right: Truth, close: float) -> str:
    """Say which token differs although the model was sure of it by more than `close`."""
    first = len(each.asked.tokens) - 1
    for place, token in enumerate(each.answer):
        row = right.logits[first + place]
        if float(row.max() - row[token]) > close:
            return f"token {place} of an answer is {token}, not {int(row.argmax())}"
    return ""


# --- batched mode ---


def batched(subject: Subject) -> Outcome:
    """Rows together, with hits: close to one forward over everything, and the same tokens."""
    pool = {"state_pool": "separate", "prefix_cache_state_budget": 32} if subject.stateful else {}
    run, served = with_hits(subject, mode="batched", **pool)
    writer = Writer(3)
    prompts = [longer(each.asked, writer.text(3 + 9 * n)) for n, each in enumerate(served)]
    prompts += [Asked(writer.text(n)) for n in (1, 17, 40, 40)]
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
    different = sum(
        not torch.equal(left, right)
        for left, right in zip(_tensors(fork.content), _tensors(alone.content), strict=True)
    )
    count = len(list(_tensors(fork.content)))
    return Outcome(different, 0, detail=f"{count} tensors, {fork.hit} tokens reused")


def _tensors(stored: Content) -> Iterator[torch.Tensor]:
    """Yield bytes, so that equal means equal in every bit."""
    for tensor in (*stored.entries, *([stored.state] if stored.state is not None else [])):
        yield tensor.contiguous().view(-1).view(torch.uint8)


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
    """A forward that is told the recorded choices equals the one that made them (R4)."""
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
    away = _largest(moved.logits, free.logits)
    wrong = "" if obeyed and away else "other choices were not followed"
    detail = f"other choices move logits by {away:.1f}"
    return Outcome(_largest(forced.logits, free.logits), 0, wrong, detail)


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
    pixels = _largest(*ends)
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
    """Whether it compares bits. Only that means anything in types of 16 bits, where the rounding
    of another shape already chooses other experts."""

    def fits(self, dtype: str) -> bool:
        """Tell whether the level says anything about a type."""
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
    Level("experts", experts, _routes),
    Level("replay", replay, _routes, bitwise=True),
    Level("images", images, lambda subject: subject.image, bitwise=True),
)
