"""A model without mathematics: every mistake with memory changes its output.

A layer is a group. At position p an attention layer sums all visible entries *as it reads them
through its table*, and writes an entry that depends on this sum and on the layers below; where an
entry has several tokens, it is written with the last of them. A recurrent layer folds its state.
The next token is a hash of the output of the last layer. So an entry stands for everything before
it, and a wrong table, a stale block, a lost copy or an old state changes the entry and everything
after it.

A step runs at once, and once more when it ends: it reads its slots again, which must not have
changed, and writes its entries again. This destroys any block that was handed out too early while
the step was in flight (B6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.attention_groups import GroupConfig, first_visible
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.context_ranks import ALONE, ContextRanks
from kvproof.reference.core.identity import Span
from kvproof.reference.model.interface import Content, Place, Sample, Stored, Work
from kvproof.reference.model.symbolic_layers import (
    Attention,
    Recurrence,
    digest,
    mix,
)
from kvproof.reference.model.symbolic_memory import POISON, SymbolicMemory
from kvproof.reference.model.symbolic_scales import Words

BROKEN = -1
"""The token of a step whose memory changed while it was in flight."""
SAYS, GUESSES, ROUTES = 1, 2, 3
"""Salts of the hash of a hidden word, so that the outputs are independent."""
_PLAIN = "symbolic words"
Experts: TypeAlias = npt.NDArray[np.int64]
OnHidden: TypeAlias = Callable[[Work, Sequence[int], Sample], None]
"""Called with the work of a request, the hidden words of its positions and its sample."""


def next_token(hidden: int, vocabulary: int) -> int:
    """Sample the token after the position with this hidden word."""
    return mix(hidden, SAYS) % vocabulary


def expert_rows(hidden: Sequence[int], form: tuple[int, int, int]) -> Experts:
    """Route positions by their hidden words; [positions, layers, ranks], as in `form` (R1)."""
    experts, *shape = form
    places = range(shape[0] * shape[1])
    rows = [mix(word + place, ROUTES) % experts for word in hidden for place in places]
    return np.array(rows, np.int64).reshape(len(hidden), *shape)


def guesses(hidden: int, count: int, vocabulary: int) -> tuple[int, ...]:
    """Draft the tokens after those that the draft layers have read."""
    return tuple(mix(hidden + index, GUESSES) % vocabulary for index in range(count))


def embed(root: int, token: int, position: int) -> int:
    """Return the input of the first layer; `root` stands for namespace and weights."""
    return mix(mix(root, token), position)


class Pass:
    """One request in one step: runs at once, and ends when the step ends."""

    def __init__(self, memory: SymbolicMemory, config: CacheConfig, work: Work) -> None:
        self._work, layout = work, config.layout
        self.request_id = work.request_id
        self._memory = memory
        self._copied = [memory.block(source) for source, _ in work.copies]
        memory.copy(work.copies)
        self._main: list[Attention | Recurrence] = []
        self._draft: list[Attention] = []
        inputs = input_words(work, layout.entry)
        for index, group in enumerate(layout.groups):
            if group.kind == "state":
                if index == layout.states[0]:
                    self._main.append(Recurrence(memory, layout.state_blocks, work))
            elif group.draft:
                self._draft.append(Attention(memory, index, group, work, inputs))
            else:
                self._main.append(Attention(memory, index, group, work, inputs))
        self.hidden = [self._at(p, inputs[p]) for p in range(work.start, work.stop)]

    def _at(self, position: int, hidden: int) -> int:
        for layer in self._main:
            hidden = layer.at(position, hidden)
        return hidden

    def run(self, vocabulary: int, experts: tuple[int, int, int]) -> Sample:
        """Judge the drafts, sample, let the draft layers follow, write everything."""
        work = self._work
        token, accepted = self._sample(vocabulary) if work.samples else (None, 0)
        seen = self._follow(work.stop - work.drafts + accepted)
        self._store()
        proposed = guesses(mix(seen, token), work.propose, vocabulary) if token is not None else ()
        return Sample(token, accepted, proposed, expert_rows(self.hidden, experts))

    def _sample(self, vocabulary: int) -> tuple[int, int]:
        work, accepted = self._work, 0
        sampled = [next_token(hidden, vocabulary) for hidden in self.hidden[-1 - work.drafts :]]
        drafts = work.tokens[work.known - work.drafts : work.known]
        while accepted < work.drafts and drafts[accepted] == sampled[accepted]:
            accepted += 1
        return sampled[accepted], accepted

    def _follow(self, stop: int) -> int:
        """Let the draft layers read the output of the last layer, up to the last accepted token."""
        seen = 0
        for position in range(self._work.start, stop):
            seen = self.hidden[position - self._work.start]
            for layer in self._draft:
                seen = layer.at(position, seen)
        return seen

    def _store(self) -> None:
        for layer in (*self._main, *self._draft):
            layer.store()

    def end(self) -> bool:
        """Read and write again; returns whether all values read are unchanged."""
        layers: list[Attention | Recurrence] = [*self._main, *self._draft]
        sources = [self._memory.block(source) for source, _ in self._work.copies]
        intact = sources == self._copied and not any(layer.changed() for layer in layers)
        for layer in layers:
            layer.store_again(intact=intact)
        return intact


def input_words(work: Work, most: int) -> dict[int, int]:
    """Return the inputs of a step's positions, and of the tokens that share an entry with them.

    `most`: tokens of an entry. The spans of earlier positions were encoded in earlier steps (M3).
    """
    root = digest(*work.namespace, work.weights)
    first = work.start // most * most
    media = media_words(work.spans, range(len(work.spans)), first, work.start)
    media |= media_words(work.spans, work.encode, work.start, work.stop)
    words = {p: embed(root, work.tokens[p], p) for p in range(first, work.stop)}
    return words | {p: mix(words[p], word) for p, word in media.items()}


def media_words(
    spans: Sequence[Span], encoded: Sequence[int], start: int, stop: int
) -> dict[int, int]:
    """Return the words of the placeholders in [start, stop): poison where no encoder ran."""
    words: dict[int, int] = {}
    for index, span in enumerate(spans):
        word = digest(span.kind, span.content) if index in encoded else POISON
        inside = range(max(start, span.start), min(stop, span.start + span.length))
        words |= {position: mix(word, position - span.start) for position in inside}
    return words


def _bytes(words: Sequence[int]) -> bytes:
    return np.array(words, np.uint64).tobytes()


def _words(data: bytes, count: int) -> Words:
    if len(data) != count * 8:
        raise ValueError(f"moved content has {len(data)} bytes, expected {count * 8}")
    return np.frombuffer(data, np.uint64)


class SymbolicModel:
    """Runs on a memory of its own; `vocabulary` is small so that prompts fork and repeat."""

    def __init__(
        self,
        config: CacheConfig,
        *,
        vocabulary: int = 4,
        salted: bool = True,
        ranks: ContextRanks = ALONE,
        scaled: Sequence[int] = (),
    ) -> None:
        """`salted`: answers depend on the salt, so that a leak between tenants changes them.

        Without it, a salt separates cached blocks only, as in real models. `ranks` share the
        entries of each request (Q4), the entries of `scaled` groups have scales (Q8). Raises
        ConfigError if they cannot.
        """
        self.memory, self._salted = SymbolicMemory(config, ranks, scaled), salted
        self._scaled = sorted(scaled)
        self._config, self._vocabulary = config, vocabulary
        self._experts = config.experts if config.return_routed_experts else (1, 0, 0)
        self._running: dict[int, list[tuple[Pass, Sample]]] = {}
        self.computed = 0
        self.on_hidden: OnHidden | None = None

    def launch(self, step: int, works: Sequence[Work]) -> None:
        """Run a step at once; see `Model`."""
        self._running[step] = [self._run(work) for work in works]

    def _run(self, work: Work) -> tuple[Pass, Sample]:
        self.computed += work.stop - work.start
        if not self._salted:
            work = work._replace(namespace=work.namespace._replace(salt=None))
        running = Pass(self.memory, self._config, work)
        sample = running.run(self._vocabulary, self._experts)
        if self.on_hidden is not None:
            self.on_hidden(work, running.hidden, sample)
        return running, sample

    def finish(self, step: int) -> Mapping[str, Sample]:
        """End a step: its memory must be as it was, and it may still write."""
        samples = {}
        for running, sample in self._running.pop(step):
            broken = not running.end() and sample.token is not None
            samples[running.request_id] = sample._replace(token=BROKEN) if broken else sample
        return samples

    def take(self, place: Place) -> Content:
        """Read a whole request through its tables (C5)."""
        entries = []
        for index, group in self._attention():
            first = first_visible(group, place.stop)
            slots = self.memory.slots(index, place.tables[index], first, place.stop)
            entries += [words.tobytes() for words in self.memory.stored(index, slots)]
        return Content(entries, _bytes(self.memory.state(place.state)) if place.state else b"")

    def put(self, content: Content, place: Place) -> None:
        """Write a request that `take` has read."""
        tensors = iter(content.entries)
        for index, group in self._attention():
            seen, stop = first_visible(group, place.stop) // group.ratio, place.stop // group.ratio
            here = [next(tensors) for _ in range(1 + (index in self._scaled))]
            first = max(place.start, first_visible(group, place.stop))
            slots = self.memory.slots(index, place.tables[index], first, place.stop)
            skipped = first // group.ratio - seen
            self.memory.put_stored(slots, [_words(each, stop - seen)[skipped:] for each in here])
        if place.state:
            parts = len(self.memory.state(place.state))
            self.memory.write_state(place.state, _words(content.state, parts).tolist())

    def _attention(self) -> list[tuple[int, GroupConfig]]:
        groups = enumerate(self._config.layout.groups)
        return [(index, group) for index, group in groups if group.kind != "state"]

    @property
    def geometry(self) -> str:
        """See `Mover`: one word for each entry, and a scale for those of some groups."""
        return f"symbolic words, with scales in {self._scaled}" if self._scaled else _PLAIN

    def object_bytes(self, part: str) -> int:
        """See `Mover`."""
        layout = self._config.layout
        if part == "state":
            return self.memory.object_bytes(part, 0)
        rule = layout.full if part == "full" else layout.local[int(part.removeprefix("local"))]
        return self.memory.object_bytes(part, rule.width)

    def save(self, places: Sequence[Stored]) -> list[bytes]:
        """See `Mover`."""
        return [self.memory.take(*place) for place in places]

    def load(self, places: Sequence[Stored], objects: Sequence[memoryview]) -> None:
        """See `Mover`."""
        for place, words in zip(places, objects, strict=True):
            self.memory.put(*place, words)

    def sleep(self, *, keep: bool) -> None:
        """See `Sleeper`."""
        self.memory.sleep(keep=keep)

    def wake(self) -> None:
        """See `Sleeper`."""
        self.memory.wake()

    def forget(self, blocks: Sequence[int]) -> None:
        """Destroy the content of freed blocks."""
        self.memory.poison(blocks)
