"""Content hashes of values and items, one operation each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvproof.reference.core import media_spans as media
from kvproof.reference.core.cache_policy import DISABLED, decide
from kvproof.reference.core.media_hash import content_hash
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.media import properties as seen
from kvproof.suites.reference.media.values import LAYOUTS, Value, build, meaning

ALLOWED = decide(enabled=True)


class CountedReads(Mapping[str, int]):
    """Data that count reads."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, key: str) -> int:
        return len(key)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return iter("x")


def compare(coverage: Coverage, *, one: Value, other: Value) -> str:
    """Two values, the second in another layout too."""
    same = meaning(one) == meaning(other)
    first: str = content_hash(build(one))
    for twisted in range(LAYOUTS):
        second = content_hash(build(other, twisted=twisted))
        coverage.check(
            "hashes_are_by_value" if same else "hashes_are_injective",
            (first == second) == same,
            lambda: f"{one} and {other} have {'two hashes' if same else 'one hash'}",
        )
    coverage.event(seen.OTHER_LAYOUT if same else seen.ONE_CHANGE)
    return first


def ask(coverage: Coverage, *, digest: str | None, cached: bool, times: int) -> int:
    """One item whose hash several requests need."""
    data = CountedReads()
    content = media.Content(data, digest=digest)
    item = media.Item("image", 0, 1, content)
    access = ALLOWED if cached else DISABLED
    contents = {media.spans_of([item], access)[0].content for _ in range(times)}
    given = cached and digest is not None
    expected = int(cached and digest is None)
    coverage.check(
        "content_is_hashed_once_and_only_if_used",
        data.reads == expected and (not given or contents == {digest}),
        lambda: f"the data were read {data.reads} times, not {expected}; contents {contents}",
    )
    coverage.event(seen.GIVEN, given)
    coverage.event(seen.UNUSED, not cached)
    coverage.event(seen.USED_TWICE, cached and times > 1)
    return data.reads
