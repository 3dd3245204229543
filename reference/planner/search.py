"""Candidate splits of layers into groups (P4, P5).

A split gives the number of groups and the block size of each class of layers. For a row of R bytes
the best split is known at once: each class takes the fewest blocks that fit R. So only the possible
values of R are tried, times the units up to the bound. For one worker this loses nothing: every
omitted split needs no fewer blocks of rows no smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple

from kvproof.reference.planner.layer_classes import (
    ALIGNMENT,
    LayerClass,
    aligned,
    attention,
    recurrent,
)
from kvproof.reference.planner.plan import PlanSettings, units_held

PER_COUNT = 3
"""Splits kept for each number of groups, to be looked at exactly."""

STATE_BLOCKS = range(1, 33)
"""Numbers of blocks per state for which the row is made to fit the state."""


class Split(NamedTuple):
    """One class of layers: into how many groups, with blocks of `factor` times `block_size`."""

    groups: int
    factor: int


class Candidate(NamedTuple):
    """A split for every attention class, and the blocks that a state fills."""

    splits: tuple[Split, ...]
    state_blocks: int
    """0: there is no state, or not in the shared pool."""

    @property
    def groups(self) -> int:
        """Groups of attention layers in all; that of the states is not a matter of choice."""
        return sum(split.groups for split in self.splits)


class Cost(NamedTuple):
    """How good a candidate is for one request of `max_len`; least is best.

    One that fits is better than one that needs more memory, and that is better than one that
    needs more blocks than the user fixed: so what an error names as needed is least (P3).
    """

    lack: int
    """0: nothing, 1: memory, 2: blocks, which no memory gives."""
    size: float
    """Share of the blocks that the request takes, bytes for which it would fit, or its blocks."""


class Option(NamedTuple):
    """A number of groups and the kernel row it needs; fewer groups never need less."""

    groups: int
    kernel_row: int


def candidates(found: Sequence[LayerClass], settings: PlanSettings) -> list[Candidate]:
    """Return the best few candidates for each number of groups, cheapest first."""
    ranked: dict[Candidate, Cost] = {}
    for candidate, cost in _tried(attention(found), recurrent(found), settings):
        ranked[candidate] = min(cost, ranked.get(candidate, cost))
    kept: dict[int, int] = {}
    best = []
    for candidate in sorted(ranked, key=lambda c: (ranked[c], c)):
        kept[candidate.groups] = kept.get(candidate.groups, 0) + 1
        if kept[candidate.groups] <= PER_COUNT:
            best.append(candidate)
    return best


def _tried(
    rules: Sequence[LayerClass], states: Sequence[LayerClass], settings: PlanSettings
) -> Iterator[tuple[Candidate, Cost]]:
    options = [_options(rule, settings) for rule in rules]
    shared = settings.state_pool == "shared"
    whole_state = sum(sum(rule.state_bytes.values()) for rule in states)
    state = whole_state if shared else 0
    memory = sum(settings.memory) - (whole_state - state) * settings.state_rows
    for multiple in range(1, settings.unit_bound // settings.block_size + 1):
        for row in sorted(_rows(options, state, multiple, settings)):
            for splits, blocks in _fitting(rules, options, row, multiple, settings):
                whole = aligned_row(row, splits, settings)
                count = -(-state // whole)
                cost = _cost(whole, blocks + count * settings.states, memory, settings.num_blocks)
                yield Candidate(splits, count), cost


def aligned_row(row: int, splits: Sequence[Split], settings: PlanSettings) -> int:
    """Return a row that every group can cut into kernel rows."""
    ratio = settings.block_size // settings.kernel_size
    return aligned(row, ALIGNMENT * lcm(*(ratio * split.factor for split in splits)))


def _cost(row: int, blocks: int, memory: int, fixed: int) -> Cost:
    usable = (fixed or memory // row) - 1
    if fixed and blocks > usable:
        return Cost(2, blocks)
    if blocks > usable or usable < 1 or row * fixed > memory:
        return Cost(1, row * max(blocks + 1, fixed, 2))
    return Cost(0, blocks / usable)


def _options(rule: LayerClass, settings: PlanSettings) -> list[Option]:
    """Return the numbers of groups that need a smaller row than all smaller numbers."""
    found: list[Option] = []
    for groups in range(1, len(rule.layers) + 1):
        row = sum(rule.kernel_rows(groups, settings.kernel_slots, len(settings.memory)))
        if not found or row < found[-1].kernel_row:
            found.append(Option(groups, row))
    return found


def _rows(
    options: Sequence[Sequence[Option]],
    state: int,
    multiple: int,
    settings: PlanSettings,
) -> set[int]:
    """Return the rows that some class, or a state, fills whole."""
    ratio = settings.block_size // settings.kernel_size
    factors = _divisors(multiple)
    found = {
        factor * ratio * option.kernel_row
        for of_class in options
        for option in of_class
        for factor in factors
    }
    if not options:
        return {max(1, state)}
    least = max(of_class[-1].kernel_row * ratio for of_class in options)
    shares = {aligned(-(-state // count)) for count in STATE_BLOCKS}
    return found | {share for share in shares if share >= least}


def _divisors(number: int) -> list[int]:
    return [factor for factor in range(1, number + 1) if number % factor == 0]


def _fitting(
    rules: Sequence[LayerClass],
    options: Sequence[Sequence[Option]],
    row: int,
    multiple: int,
    settings: PlanSettings,
) -> list[tuple[tuple[Split, ...], int]]:
    """Return splits that fit a row: the one with fewest blocks, the one with fewest groups."""
    least: list[tuple[int, Split]] = []
    fewest: list[tuple[int, Split]] = []
    for rule, of_class in zip(rules, options, strict=True):
        fits = _class_fits(rule, of_class, row, multiple, settings)
        if not fits:
            return []
        least.append(min(fits))
        fewest.append(min(fits, key=lambda fit: (fit[1].groups, fit[0])))
    both = [least] if least == fewest else [least, fewest]
    return [(tuple(fit[1] for fit in fits), sum(fit[0] for fit in fits)) for fits in both]


def _class_fits(
    rule: LayerClass, options: Sequence[Option], row: int, multiple: int, settings: PlanSettings
) -> list[tuple[int, Split]]:
    """Return (blocks, split) for every block size that fits, with the fewest groups it takes."""
    unit = multiple * settings.block_size
    units = units_held(
        rule.kind, rule.size, settings.max_len, unit=unit, in_flight=settings.max_batch_tokens
    )
    ratio = settings.block_size // settings.kernel_size
    found = []
    for factor in _divisors(multiple):
        fitting = [option for option in options if factor * ratio * option.kernel_row <= row]
        if fitting:
            split = Split(fitting[0].groups, factor)
            found.append((split.groups * units * (multiple // factor), split))
    return found
