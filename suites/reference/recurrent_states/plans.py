"""Token counts after which a request saves its state, against brute force (S6, S8)."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.reference.cache.state_steps import saved_after
from kvproof.reference.core.identity import Span
from kvproof.suites.framework.coverage import Coverage


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

    def steps(self) -> list[tuple[int, int]]:
        """Return [start, stop) of each step; span borders are not checked here."""
        starts = range(self.hit, self.total, self.chunk)
        return [(start, min(start + self.chunk, self.total)) for start in starts]

    def free(self, position: int) -> bool:
        """Whether no span lies on both sides of a position."""
        return not any(start < position < end for start, end in self.spans)

    def borders(self, start: int, stop: int) -> list[int]:
        """Return the positions in (start, stop] where an equal prompt could go on from a state."""
        stop = min(stop, self.prompt - 1)
        return [p for p in range(start + 1, stop + 1) if p % self.unit == 0 and self.free(p)]

    def end(self, start: int, stop: int) -> list[int]:
        """Return the end of the prompt, if it is a border that the step passes."""
        return [p for p in range(start + 1, stop + 1) if p == self.prompt and p % self.unit == 0]

    def multiples(self, start: int, stop: int) -> list[int]:
        """Return the multiples of the interval in (start, stop] after the prompt."""
        decoded = range(max(start, self.prompt) + 1, stop + 1)
        return [p for p in decoded if self.interval and p % self.interval == 0]


def check_chain(coverage: Coverage, spans: list[list[int]], **sizes: int) -> object:
    """Plan a whole request, step by step, and check all saves."""
    chain = Chain(spans=[(start, end) for start, end in spans], **sizes)
    plan = {step: _saved(chain, *step) for step in chain.steps()}
    prefill = [p for saved in plan.values() for p in saved if p <= chain.prompt]
    chunks = sum(start < chain.prompt for start, _ in plan)
    coverage.check(
        "saves_are_bounded",
        len(prefill) <= chunks + 2,
        lambda: f"{len(prefill)} states are saved in {chunks} chunks: {chain}",
    )
    coverage.event("a prompt has many chunks", chunks > 3)
    for (start, stop), saved in plan.items():
        _check_prefill(coverage, chain, start, stop, saved)
        _check_decode(coverage, chain, start, stop, saved)
    return list(plan.values())


def _saved(chain: Chain, start: int, stop: int) -> list[int]:
    return saved_after(
        start,
        stop,
        prompt=chain.prompt,
        unit=chain.unit,
        divergence=chain.junction,
        interval=chain.interval,
        spans=[Span("image", start, end - start, "x") for start, end in chain.spans],
    )


def _check_prefill(
    coverage: Coverage, chain: Chain, start: int, stop: int, saved: list[int]
) -> None:
    inside = [position for position in saved if not chain.free(position)]
    coverage.check(
        "no_state_is_saved_inside_a_span",
        not inside,
        lambda: f"the step [{start}, {stop}) saves after {inside}: {chain}",
    )
    passes = start < chain.junction <= stop
    due = {*chain.borders(start, stop)[-1:], *chain.end(start, stop)}
    due |= {chain.junction} if passes else set()
    found = [position for position in saved if position <= chain.prompt]
    saves = f"the step [{start}, {stop}) saves after"
    coverage.equal("junctions_are_saved", found, sorted(due), saves)
    coverage.event("a prompt leaves the cache inside", passes)
    border = min(stop, chain.prompt - 1) // chain.unit * chain.unit
    coverage.event("a last border inside a span", border > start and not chain.free(border))


def _check_decode(
    coverage: Coverage, chain: Chain, start: int, stop: int, saved: list[int]
) -> None:
    due = chain.multiples(start, stop)
    found = [position for position in saved if position > chain.prompt]
    saves = f"the step [{start}, {stop}) saves after"
    coverage.equal("decode_states_keep_their_interval", found, due[-1:], saves)
    coverage.event("a step of several tokens passes a multiple", due and due[-1] < stop)
