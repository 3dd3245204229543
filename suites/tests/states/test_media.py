"""The suite `media` shows every situation, and its properties notice the faults planted here."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.media.strategies import SUITE
from kvproof.suites.tests.framework.planted import Fault, load, plant
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, fallen, sees_everything

"""Who notices a fault is settled before shrinking."""


class Planted(NamedTuple):
    """A bug in the reference: `property` has to notice that `old` is `new`."""

    story: str
    property: str
    module: str
    old: str
    new: str


FAULTS = (
    Planted(
        "only the bytes of an array are hashed (SGLang: no shape, no type)",
        "hashes_are_injective",
        "core.media_hash",
        '    _count(feed, b"a", len(shape))\n'
        '    feed(struct.pack(f"<{len(shape)}q", *shape))\n'
        "    _text(feed, kind)\n",
        "",
    ),
    Planted(
        "sequences are written without their ends",
        "hashes_are_injective",
        "core.media_hash",
        '    _count(feed, b"l" if isinstance(value, list) else b"t", len(value))\n',
        '    feed(b"l" if isinstance(value, list) else b"t")\n',
    ),
    Planted(
        "a list is a tuple",
        "hashes_are_injective",
        "core.media_hash",
        'b"l" if isinstance(value, list) else b"t"',
        'b"t"',
    ),
    Planted(
        "a mapping is hashed in the order of its keys' arrival",
        "hashes_are_by_value",
        "core.media_hash",
        '    feed(b"".join(sorted(digests)))\n',
        '    feed(b"".join(digests))\n',
    ),
    Planted(
        "an array is hashed as it lies in memory",
        "hashes_are_by_value",
        "core.media_hash",
        "_little(numbers).tobytes()",
        'numbers.tobytes("K")',
    ),
    Planted(
        "anything is hashed by its repr (LMDeploy: address in the key)",
        "hashes_are_by_value",
        "core.media_hash",
        "    dict: _mapping,\n",
        "    dict: lambda feed, value: _text(feed, repr(value)),\n",
    ),
    Planted(
        "the hash is computed for every request that asks",
        "content_is_hashed_once_and_only_if_used",
        "core.media_spans",
        "        self._data = self._metadata = None\n        return self._digest\n",
        "        digest, self._digest = self._digest, None\n        return digest\n",
    ),
    Planted(
        "the caller's hash is not taken",
        "content_is_hashed_once_and_only_if_used",
        "core.media_spans",
        "        if self._digest is None:\n            self._digest =",
        "        if self._data is not None:\n            self._digest =",
    ),
    Planted(
        "media are hashed although the cache is off",
        "content_is_hashed_once_and_only_if_used",
        "core.media_spans",
        "    hashed = access.read or access.write\n",
        "    hashed = bool(access)\n",
    ),
    Planted(
        "spans stay in the order of arrival (vLLM: features in argument order)",
        "span_order_does_not_matter",
        "core.media_spans",
        "    return tuple(sorted(spans, key=lambda span: (span.start, span.length, span)))\n",
        "    return tuple(spans)\n",
    ),
    Planted(
        "the content of a span is left out of the key (vLLM, SGLang I2151: second image answered)",
        "blocks_are_equal_iff_their_content_is",
        "core.identity",
        "fields = (field for span in spans for field in span)",
        "fields = (field for span in spans for field in span[:3])",
    ),
    Planted(
        "a block carries only the first span that begins in it",
        "blocks_are_equal_iff_their_content_is",
        "core.identity",
        "        marks[block] = (*marks.get(block, ()), span)\n",
        "        marks.setdefault(block, (span,))\n",
    ),
    Planted(
        "all frames of a video are known by the first (LMDeploy: videos not expanded)",
        "blocks_are_equal_iff_their_content_is",
        "core.media_spans",
        "Content(picture, metadata=metadata) for picture in pictures]",
        "Content(pictures[0], metadata=metadata) for picture in pictures]",
    ),
    Planted(
        "prompt embeddings are known by their first row (vLLM: embeddings without identity)",
        "blocks_are_equal_iff_their_content_is",
        "core.media_spans",
        "Content(embeddings[row])",
        "Content(embeddings[0])",
    ),
    Planted(
        "spans may overlap",
        "spans_are_refused_iff_malformed",
        "core.identity",
        "    if span.start < end:\n",
        "    if span.start < 0:\n",
    ),
    Planted(
        "spans that touch are refused",
        "spans_are_refused_iff_malformed",
        "core.identity",
        "    if span.start < end:\n",
        "    if end and span.start <= end:\n",
    ),
    Planted(
        "one pass of the clamp has to do (LMDeploy efd2ffc8b)",
        "clamps_reach_a_fixpoint",
        "cache.hit_length",
        "        if length == before:\n            return length\n\n\ndef outside_spans",
        "        return length\n\n\ndef outside_spans",
    ),
    Planted(
        "a clamp goes back over a span that ends at the match",
        "clamps_reach_a_fixpoint",
        "cache.hit_length",
        "length < stops[index] else length",
        "length <= stops[index] else length",
    ),
    Planted(
        "a step ends at its budget",
        "chunks_never_split_a_span",
        "core.media_spans",
        "    return span.start if span.start > start else span.start + span.length\n",
        "    return stop\n",
    ),
    Planted(
        "a step without room for the next span takes it all the same",
        "chunks_are_as_long_as_they_may_be",
        "core.media_spans",
        "    return span.start if span.start > start else span.start + span.length\n",
        "    return span.start + span.length\n",
    ),
    Planted(
        "a step that begins at a span makes no progress",
        "chunks_never_split_a_span",
        "core.media_spans",
        "    return span.start if span.start > start else span.start + span.length\n",
        "    return span.start\n",
    ),
    Planted(
        "the limit grows for spans of all turns (LMDeploy 5ca122918: out of memory)",
        "the_chunk_limit_grows_for_this_turn_only",
        "core.media_spans",
        "for span in spans if span.start >= turn)",
        "for span in spans)",
    ),
    Planted(
        "encoders run for spans that the hit covers",
        "each_missed_span_is_encoded_once",
        "core.media_spans",
        "        and start <= max(spans[index].start, hit) < stop\n",
        "        and spans[index].start < stop\n",
    ),
    Planted(
        "the encoder of a span that begins where the step does is skipped",
        "each_missed_span_is_encoded_once",
        "core.media_spans",
        "        and start <= max(spans[index].start, hit) < stop\n",
        "        and start < max(spans[index].start, hit) < stop\n",
    ),
)


@pytest.mark.slow(reason="finds planted faults by exploration")
def test_every_situation_occurs_and_nothing_breaks():
    sees_everything(SUITE)


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.story)
def test_each_fault_falls_to_its_property(fault):
    name = f"media_{FAULTS.index(fault)}"
    plant(name, Fault(f"reference.{fault.module}", fault.old, fault.new))
    broken = load(name, "suites.reference.media.strategies").SUITE
    found = fallen(lambda seed: explore(broken, UNSHRUNK, seed=seed)).violation
    assert isinstance(found, Violation)
    assert found.property == fault.property


def test_every_property_notices_some_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
