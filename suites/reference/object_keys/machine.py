"""Keys of many requests against their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.reference.core import identity
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.object_keys import properties as seen
from kvproof.suites.reference.object_keys.second_process import KeyRequest, SpanPlace, companion


@dataclass
class Known:
    """A request with its keys, extended and cut so far."""

    tracked: KeyRequest
    keys: Any
    was_cut: bool = False


class ObjectKeysMachine:
    """Checks every key of every request after each operation; `subject` may carry a fault."""

    def __init__(self, config: Config, coverage: Coverage, subject: Any = identity) -> None:
        self.known: list[Known] = []
        self.block_size: int = config["block_size"]
        self._algorithm: str = config["algorithm"]
        self._coverage, self._subject = coverage, subject
        self._content: dict[bytes, object] = {}
        self._key: dict[object, bytes] = {}

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run `begin`, `vary`, `append`, `cut` or `ask`; the last four need a request."""
        if verb == "begin":
            return self._begin(**arguments)
        if not self.known:
            return None
        chosen = self.known[arguments.pop("of") % len(self.known)]
        return getattr(self, f"_{verb}")(chosen, **arguments)

    def _begin(self, namespace: list[str | None], tokens: list[int], spans: list[Any]) -> object:
        adapter, version, salt = namespace
        places = tuple((kind, start, length, content) for kind, start, length, content in spans)
        space = adapter, version, salt
        return self._add(
            KeyRequest(self._algorithm, self.block_size, space, 0, 0, tuple(tokens), places)
        )

    def _add(self, tracked: KeyRequest) -> object:
        self.known.append(Known(tracked, tracked.hashed(self._subject)))
        return self._judge(self.known[-1])

    def _vary(self, chosen: Known, change: str, to: Any) -> object:
        """Add an equal request, or one that differs in one thing."""
        old = chosen.tracked
        spans = _varied(old.spans, change, to, len(old.tokens))
        new = old._replace(spans=spans)
        if change == "namespace":
            new = new._replace(namespace=tuple(to))
        elif change in ("group", "epoch"):
            new = new._replace(**{change: to})
        self._cover(old, new)
        return self._add(new)

    def _cover(self, old: KeyRequest, new: KeyRequest) -> None:
        saw, differs = self._coverage.event, bool(new.blocks)
        ours, theirs = _named(old), _named(new)
        spaces = differs and old.namespace != new.namespace
        saw(seen.KINDS, spaces and sorted(ours) == sorted(theirs))
        saw(seen.JOINED, spaces and "".join(ours) == "".join(theirs))
        saw(seen.OTHER_GROUP, differs and old.group != new.group)
        saw(seen.OTHER_EPOCH, differs and old.epoch != new.epoch)
        for mine, other in zip(old.spans, new.spans, strict=True):
            inside = min(mine[1], other[1]) < new.blocks * new.block_size
            saw(seen.SHIFTED, inside and mine[1] != other[1])
            saw(seen.ALIKE, inside and mine[3] != other[3])

    def _append(self, chosen: Known, tokens: list[int]) -> object:
        before = len(chosen.tracked.tokens)
        chosen.tracked = chosen.tracked._replace(tokens=(*chosen.tracked.tokens, *tokens))
        grown = tokens and chosen.tracked.blocks > before // self.block_size
        self._coverage.event(seen.APPENDED, grown and before % self.block_size)
        self._coverage.event(seen.EDITED, grown and chosen.was_cut)
        chosen.tracked.extend(chosen.keys, self._subject)
        return self._judge(chosen)

    def _cut(self, chosen: Known, count: int) -> object:
        whole = chosen.tracked
        chosen.tracked = whole.cut(count)
        gone = [span[1] for span in whole.spans if span not in chosen.tracked.spans]
        left = min([len(chosen.tracked.tokens), *gone])  # a removed span changes its first block
        chosen.was_cut = True
        self._coverage.event(seen.CUT, left % self.block_size and left // self.block_size)
        chosen.keys.truncate(left)
        chosen.tracked.extend(chosen.keys, self._subject)
        return self._judge(chosen)

    def _ask(self, chosen: Known) -> object:
        """Compare with another process."""
        there = companion().keys(chosen.tracked)
        here = [key.hex() for key in chosen.keys.keys]
        self._coverage.equal(
            "keys_repeat_in_every_process", there, here, "keys of another process:"
        )
        return len(here)

    def _judge(self, known: Known) -> object:
        tracked, keys = known.tracked, list(known.keys.keys)
        scratch = list(tracked.hashed(self._subject).keys)
        self._coverage.check(
            "edited_keys_are_those_from_scratch",
            keys == scratch and len(keys) == tracked.blocks,
            lambda: f"{tracked} has {len(keys)} keys; hashed at once it has {len(scratch)}, others",
        )
        for block, key in enumerate(keys):
            content = tracked.content(block)
            self._coverage.event(seen.TWINS, content in self._key)
            other = self._content.setdefault(key, content)
            self._coverage.check(
                "keys_are_equal_iff_their_content_is",
                other == content and self._key.setdefault(content, key) == key,
                lambda: f"block {block} of {tracked} has key {key.hex()}, which is that of {other}",  # noqa: B023 - called at once
            )
        return len(keys)


def _named(tracked: KeyRequest) -> list[str]:
    return [name for name in tracked.namespace if name is not None]


def _varied(
    spans: tuple[SpanPlace, ...], change: str, to: Any, count: int
) -> tuple[SpanPlace, ...]:
    """Return spans of which the last has another place or content; equal ones if it cannot."""
    if not spans or change not in ("place", "content"):
        return spans
    *others, (kind, start, length, content) = spans
    if change == "content":
        return (*others, (kind, start, length, to))
    moved = start + to
    if moved + length > count:
        return spans
    return (*others, (kind, moved, length, content))
