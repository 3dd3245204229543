"""Where the steps of a recurrent model end and what they save, against brute force (S6, S8, M3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kvproof.reference.identity import Span
from kvproof.reference.state_saves import next_stop, save_kind
from kvproof.suites.part import Recorder

Saved: TypeAlias = tuple[int, str]
"""(tokens, kind)"""


@dataclass
class Chain:
    """One request from its hit to its end, `chunk` tokens a step."""

    hit: int
    prompt: int
    total: int
    chunk: int
    unit: int
    junction: int
    interval: int
    spans: list[tuple[int, int]]
    """[start, end) of each."""

    def free(self, position: int) -> bool:
        """Tell whether no span lies on both sides of a position."""
        return not any(start < position < end for start, end in self.spans)

    def borders(self, start: int, stop: int) -> list[int]:
        """Return the unit borders in (start, stop] at which a state may be saved."""
        return [p for p in range(start + 1, stop + 1) if p % self.unit == 0 and self.free(p)]

    def last(self) -> int:
        """Return the last border that an equal prompt can hit, or 0."""
        return max(self.borders(0, self.prompt - 1), default=0)

    def chances(self) -> set[int]:
        """Positions that must be saved wherever the chunks end."""
        decoded = range(self.interval, self.total + 1, self.interval) if self.interval else ()
        found = {self.junction, self.last(), *(p for p in decoded if p > self.prompt)}
        return {p for p in found if self.hit < p <= self.total and self.free(p)}


def check_chain(recorder: Recorder, spans: list[list[int]], **sizes: int) -> object:
    """Plan a whole request, step by step, and judge each end and all that is saved."""
    chain = Chain(spans=[(start, end) for start, end in spans], **sizes)
    named = [Span("image", start, end - start, "x") for start, end in chain.spans]
    steps, saved = _plan(chain, named)
    _check_number(recorder, chain, sum(kind == "prefill" for _, kind in saved))
    for start, limit, stop in steps:
        _check_stop(recorder, chain, start, limit, stop)
    _check_saves(recorder, chain, saved)
    return saved


def _plan(chain: Chain, spans: list[Span]) -> tuple[list[tuple[int, int, int]], list[Saved]]:
    """Return each step's (start, limit, stop), as far as there is progress, and what is saved."""
    sizes = {"prompt": chain.prompt, "unit": chain.unit, "interval": chain.interval}
    position, steps = chain.hit, []
    saved: list[Saved] = []
    while position < chain.total:
        start, limit = position, min(position + chain.chunk, chain.total)
        position = next_stop(start, limit, **sizes, junction=chain.junction, spans=spans)
        steps.append((start, limit, position))
        if position <= start:
            break
        kind = save_kind(position, **sizes, spans=spans)
        saved += [(position, kind)] if kind != "no" else []
    return steps, saved


def _check_stop(recorder: Recorder, chain: Chain, start: int, limit: int, stop: int) -> None:
    prop = "steps_end_outside_spans"
    step = f"the step from {start} up to {limit} of {chain}"
    recorder.check(prop, stop > start, lambda: f"{step} makes no progress: {stop}")
    recorder.check(prop, chain.free(stop), lambda: f"{step} ends inside a span: {stop}")
    fits = [p for p in range(start + 1, limit + 1) if chain.free(p)]
    recorder.saw("a span is longer than a chunk", not fits)
    recorder.saw("a chunk ends inside a span", fits and not chain.free(limit))
    first = min(p for p in range(start + 1, stop + 1) if chain.free(p))
    recorder.check(
        prop,
        stop <= limit if fits else stop == first,
        lambda: f"{step} ends at {stop}, beyond its limit",
    )
    if stop not in chain.chances():
        borders = chain.borders(start, limit) if limit < chain.prompt else []
        best = max(borders or fits or [stop])
        recorder.check(prop, stop == best, lambda: f"{step} ends at {stop}, not at {best}")


def _check_saves(recorder: Recorder, chain: Chain, saved: list[Saved]) -> None:
    positions = {position for position, _ in saved}
    prefill = {p for p in chain.chances() if p <= chain.prompt}
    recorder.check(
        "junctions_are_saved",
        prefill <= positions,
        lambda: f"{sorted(prefill - positions)} not saved, only {saved}: {chain}",
    )
    recorder.saw("a prompt leaves the cache inside", chain.junction in prefill)
    border = (chain.prompt - 1) // chain.unit * chain.unit
    recorder.saw("a last border inside a span", border > chain.hit and not chain.free(border))
    wrong = [
        entry
        for entry in saved
        if entry[1] != ("prefill" if entry[0] <= chain.prompt else "decode")
        or entry[0] % chain.unit
        or not chain.free(entry[0])
    ]
    recorder.check("junctions_are_saved", not wrong, lambda: f"{wrong} saved: {chain}")
    decoded = chain.chances() - prefill
    found = {position for position in positions if position > chain.prompt}
    recorder.check(
        "decode_states_keep_their_interval",
        found == decoded,
        lambda: f"behind the prompt {sorted(found)} is saved, not {sorted(decoded)}: {chain}",
    )
    recorder.saw("a step of several tokens crosses a decode interval", decoded and chain.chunk > 1)


def _check_number(recorder: Recorder, chain: Chain, number: int) -> None:
    """Without spans; those may cut chunks shorter."""
    aligned = max(chain.chunk // chain.unit, 1) * chain.unit
    chunks = -(-max(chain.prompt - chain.hit, 0) // aligned)
    if not chain.spans:
        recorder.check(
            "saves_are_bounded",
            number <= chunks + 2,
            lambda: f"{number} states are saved in {chunks} chunks: {chain}",
        )
        recorder.saw("a prompt has many chunks", chunks > 3)
