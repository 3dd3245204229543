"""Interface between a step and a model, which may be any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import Namespace, Span

if TYPE_CHECKING:
    from kvproof.reference.cache.request_state import StateUse


class Work(NamedTuple):
    """One request in one step: compute positions [start, stop)."""

    request_id: str
    tokens: Sequence[int]
    """All tokens known, the drafts last; after `known` it may grow once the step is decided."""
    known: int
    """How many tokens: reaching their end asks for the next one."""
    namespace: Namespace
    spans: tuple[Span, ...]
    weights: int
    """Version of the weights: resets of the cache since the start (H6)."""
    start: int
    stop: int
    tables: tuple[npt.NDArray[np.int32], ...]
    """Per group: kernel-block ids [width] as of this step; of state groups, without meaning."""
    state: StateUse | None
    encode: tuple[int, ...]
    """Spans whose encoder runs in this step; no other placeholder has content (M5)."""
    drafts: int
    """How many of the last tokens are guesses to be judged."""
    propose: int
    """How many drafts to propose after the next token."""
    copies: tuple[tuple[int, int], ...] = ()
    """(source, destination) blocks, copied before the step reads or writes (T6)."""

    @property
    def samples(self) -> bool:
        """Return whether the step ends with a new token."""
        return self.stop == self.known


class Sample(NamedTuple):
    """Result of a step for one request."""

    token: int | None
    """None: the prompt goes on."""
    accepted: int
    """How many of its drafts were right, from the first on."""
    drafts: tuple[int, ...]
    """Guesses for the tokens after `token`."""
    experts: npt.NDArray[np.int64]
    """[stop - start, layers, ranks]; no layers for a model without experts (R1)."""


class Place(NamedTuple):
    """Where the content of a request lies: positions [start, stop), as far as they are visible."""

    tables: tuple[npt.NDArray[np.int32], ...]
    """As in `Work`."""
    state: Ids
    """The recurrent state after exactly `stop` tokens; empty for models without."""
    start: int
    stop: int


class Stored(NamedTuple):
    """Where the content of an object lies in the device: blocks, or one row of states."""

    part: str
    """`full`, `local0`, `local1`, ..., or `state`."""
    ids: Ids
    """In the order of `Admission.table` and of `StateUse`."""


@runtime_checkable
class Mover(Protocol):
    """Moves objects between device and host, ordered with the reads and writes of steps (S4)."""

    geometry: str
    """How a block is laid out: objects of another geometry are other objects (H6)."""

    def object_bytes(self, part: str) -> int:
        """Return the size of the objects of a part."""

    def save(self, places: Sequence[Stored]) -> Sequence[bytes | bytearray | memoryview]:
        """Return the content of each place; its ids may be given away when this returns."""

    def load(self, places: Sequence[Stored], objects: Sequence[memoryview]) -> None:
        """Write objects to places; they may be let go of when this returns."""


@runtime_checkable
class Sleeper(Protocol):
    """Gives the memory of all pages up for a while; no step is in flight then (Q6)."""

    def sleep(self, *, keep: bool) -> None:
        """Give the memory up; `keep`: its content, scales included, waits in host memory (Q8)."""

    def wake(self) -> None:
        """Take memory again, with the content that was kept."""


class Content(NamedTuple):
    """A whole request outside of a model's memory, in the bytes of its pages (C5)."""

    entries: list[bytes]
    """Entries of each tensor of each attention group: the positions that later steps can see."""
    state: bytes


class Model(Protocol):
    """Runs steps in the order in which they are launched; results are there when a step ends."""

    def launch(self, step: int, works: Sequence[Work]) -> None:
        """Run a step, without waiting for it."""

    def finish(self, step: int) -> Mapping[str, Sample]:
        """Wait for the oldest step; returns a sample for each of its requests."""

    def take(self, place: Place) -> Content:
        """Return the content of a whole request, to be moved (C5)."""

    def put(self, content: Content, place: Place) -> None:
        """Write what `take` returned, but what lies before `place.start`: that is there.

        Raises ValueError for content of another size.
        """

    def forget(self, blocks: Sequence[int]) -> None:
        """Destroy the content of freed blocks, for debugging."""
