"""Records of a run: one line for each answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from kvproof.eval.divergence.client import Abilities
from kvproof.eval.divergence.prompts import Text
from kvproof.eval.run.files import SAMPLES, read_options
from kvproof.eval.run.records import ServerDied
from kvproof.harness.records.run_directory import Manifest, read_lines

KEY = "divergence"
"""Key of the settings in the manifest."""

Pass: TypeAlias = Literal["again", "together", "cold", "warm", "shared", "inside", "border"]
"""`again`, `together`: recomputed once more, alone or along with others. The other passes use the
judged cache: `cold` fills it, `warm` is the same prompt, the rest are other prompts."""


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


class Served(msgspec.Struct, frozen=True, kw_only=True, tag="server", tag_field="record"):
    """A server that takes part."""

    configuration: str
    role: Role
    url: str
    model: str
    abilities: Abilities
    command: tuple[str, ...] = ()
    engine: str = ""
    """Owner of its models; empty if not reported."""
    version: str = ""
    weights: str = ""
    """Digest of the model's weights; empty if they are not on this machine."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="answer", tag_field="record"):
    """One answer held against the recomputed one."""

    configuration: str
    control: bool
    """Recomputed, to measure the noise."""
    phase: Pass
    text: Text
    number: int
    """Number of the document."""
    prompt_tokens: int | None
    cached_tokens: int | None
    expected_cached: int | None
    """Cached tokens of the answer that counts as recomputed; half of the prompt contradicts."""
    places: tuple[int, ...]
    """Compared places of the answer, from 0."""
    largest: tuple[float, ...]
    """Difference at each, see `Difference`."""
    kl: tuple[float, ...]
    flips: int
    left: int
    requests: int
    seconds: float

    @property
    def hit(self) -> bool:
        """Half of the prompt or more was cached; a shared header alone is no hit."""
        return self._half(self.cached_tokens)

    @property
    def expected_hit(self) -> bool:
        """The answer that counts as recomputed was a hit."""
        return self._half(self.expected_cached)

    def _half(self, cached: int | None) -> bool:
        return 2 * (cached or 0) >= max(1, self.prompt_tokens or 1)


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost", tag_field="record"):
    """A request without an answer."""

    configuration: str
    message: str


Cause: TypeAlias = Literal["salt", "server"]


class Unequal(msgspec.Struct, frozen=True, kw_only=True, tag="unequal", tag_field="record"):
    """Recomputed answers to one prompt that differ before anything is judged."""

    configuration: str
    cause: Cause
    """`salt`: an answer repeats under its own salt, and another salt changes it."""
    largest: float
    """Largest difference in a place, see `Difference`."""


Record: TypeAlias = Served | Measured | Lost | ServerDied | Unequal

_decode = msgspec.json.Decoder(Record).decode


def read_divergence(directory: Path, manifest: Manifest) -> tuple[Options, list[Record]]:
    """Read a run directory. Raises UsageError if it holds no such run."""
    records, _ = read_lines(directory / SAMPLES, _decode)
    return read_options(manifest, KEY, Options), records


def stored(options: Options) -> dict[str, Any]:
    """Return the manifest's part of a run."""
    return {KEY: msgspec.to_builtins(options)}
