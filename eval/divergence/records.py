"""Options and records of a run, and its samples as evidence to be judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import asdict

from kvproof.eval.divergence.prompts import Text
from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.files import read_options
from kvproof.eval.run.records import (
    Abilities,
    Differences,
    EvalRun,
    Lost,
    Phase,
    Record,
    SampleRecord,
    ServerDied,
    ServerRecord,
    Unequal,
)
from kvproof.eval.verdict.measured import Measured, measured

KEY = "divergence"
"""Key of the settings in the manifest."""

Role: TypeAlias = Literal["base", "control", "judged"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a run, and when it fails."""

    documents: int = 24
    tokens: int = 16
    """Length of each answer."""
    most_tokens: int = 1000
    """Length of the longest prompt; four characters a token where a server gives no token ids."""
    at_once: int = 8
    """Simultaneous requests, in the passes with several requests at once."""
    seed: int = 0
    alpha: float = 0.01
    """Probability that a correct run fails."""
    exact: bool = False
    """The engine promises bits: any difference fails."""
    detect: float = 0.05
    """Share of wrong hits that a pass excludes with 95 % confidence."""
    weights: str = ""
    """Digest of the model's weights; empty if they are not on this machine."""
    require: tuple[str, ...] = ()
    """Situations without which there is no pass: names, families, or `all` that the server can."""
    max_time: float = 300.0
    """Seconds after which no further situation is drawn."""


def roles(config: EvalConfig) -> Mapping[str, Role]:
    """The first configuration recomputes; the control and all without a prefix cache once more."""
    found: dict[str, Role] = {
        each.name: "control" if each.control or not each.prefix_cache else "judged"
        for each in config.configuration
    }
    return found | {config.baseline.name: "base"}


class Served(Measured, frozen=True, kw_only=True):
    """A server that takes part."""

    role: Role
    abilities: Abilities
    weights: str = ""


class Pair(Differences, frozen=True, kw_only=True, dict=True):
    """One answer held against the recomputed one, with the request."""

    configuration: str
    phase: Phase
    """`again`, `together`: recomputed once more, alone or along with others. The other passes use
    the judged cache: `cold` fills it, `warm` is the same prompt, the rest are other prompts."""
    text: Text
    number: int
    """Number of the document."""
    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float

    @property
    def hit(self) -> bool:
        """Half of the prompt or more was cached; a shared header alone is no hit.

        Where the server reports nothing, all that an earlier request shares counts as cached.
        """
        return self._half(self.shared if self.cached_tokens is None else self.cached_tokens)

    @property
    def any_hit(self) -> bool:
        """Anything was cached."""
        return bool(self.shared if self.cached_tokens is None else self.cached_tokens)

    @cached_property
    def worst(self) -> float:
        """Largest difference of a log-probability in any place, in nats."""
        return max(self.largest, default=0.0)

    @property
    def expected_hit(self) -> bool:
        """The answer that counts as recomputed was a hit."""
        return self._half(self.expected_cached)

    def _half(self, cached: int | None) -> bool:
        return 2 * (cached or 0) >= max(1, self.prompt_tokens or 1)


class Earlier(NamedTuple):
    """Interrupted parts of a run, whose answers count on; their own recomputed ones are gone."""

    first: int = 0
    """Number of the next document."""
    seen: frozenset[str] = frozenset()
    """Situations that occurred."""


NOTHING = Earlier()
"""A run that begins."""


def earlier(records: Sequence[Record]) -> Earlier:
    """Sum up the records of a run that goes on."""
    samples = [each for each in records if isinstance(each, SampleRecord)]
    judged = [e.differences for e in samples if e.differences and not e.differences.control]
    return Earlier(
        1 + max((int(each.id) for each in samples), default=-1),
        frozenset(name for each in judged for name in each.situations),
    )


Evidence: TypeAlias = Served | Pair | Lost | ServerDied | Unequal


def evidence(run: EvalRun) -> tuple[Options, list[Evidence]]:
    """Return the options of a run, and what there is to judge. Raises UsageError."""
    options = read_options(run.manifest, KEY, Options)
    config = read_options(run.manifest, "evaluation", EvalConfig)
    return options, [*_served(options, config, run.records), *_answers(run.records)]


def _served(options: Options, config: EvalConfig, records: Sequence[Record]) -> Iterator[Served]:
    by_name, servers = roles(config), [e for e in records if isinstance(e, ServerRecord)]
    able = {each.configuration: each.abilities for each in servers if each.abilities}
    for each in measured(config, servers):
        yield Served(
            **asdict(each),
            role=by_name[each.configuration],
            abilities=able[each.configuration],
            weights=options.weights,
        )


def _answers(records: Sequence[Record]) -> Iterator[Evidence]:
    for each in records:
        if isinstance(each, Lost | ServerDied | Unequal):
            yield each
        elif isinstance(each, SampleRecord) and each.outcome != "answered":
            if int(each.id) < 0:
                continue  # it only took room
            yield Lost(configuration=each.configuration, message=each.faults[-1])
        elif isinstance(each, SampleRecord) and each.differences:
            yield Pair(
                **asdict(each.differences),
                configuration=each.configuration,
                phase=each.phase,
                text=msgspec.convert(each.domain, Text),
                number=int(each.id),
                prompt_tokens=each.usage.prompt_tokens,
                cached_tokens=each.usage.cached_tokens,
                seconds=each.seconds,
            )
