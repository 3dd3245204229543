"""A property that failed, and the words that explain the failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvproof.harness.contract.target import Request
from kvproof.harness.foreign_text import cut
from kvproof.harness.oracle.shadow_memory import Mismatch, Writer
from kvproof.harness.oracle.state import OracleState

SHADOW = "shadow memory"
INVARIANT = "invariant"
BRUTE_FORCE = "brute force"
METAMORPHIC = "metamorphic pair"
SURVIVES = "its process"
"""A target died, or one of its verbs raised."""


_NO_FACTS: Mapping[str, object] = MappingProxyType({})


class Violation(AssertionError):
    """`property` failed. Sentence and detail are cut: they may quote a whole table."""

    def __init__(
        self,
        prop: str,
        oracle: str,
        sentence: str,
        *,
        detail: str = "",
        suspects: tuple[int, ...] = (),
        facts: Mapping[str, object] = _NO_FACTS,
    ) -> None:
        sentence, detail = cut(sentence), cut(detail)
        super().__init__(f"{prop}: {sentence}" + (f" ({detail})" if detail else ""))
        self.property = prop
        self.oracle = oracle
        self.sentence = sentence
        self.detail = detail
        self.suspects = suspects
        self.facts = facts
        """The numbers of the sentence, by name: a known failure is recognised by them."""
        self.state: OracleState | None = None
        """The history that broke the property, as it stood then; None outside of a `Session`."""


def fail(
    state: OracleState,
    prop: str,
    oracle: str,
    sentence: str,
    *,
    detail: str = "",
    suspects: tuple[int, ...] = (),
    facts: Mapping[str, object] = _NO_FACTS,
) -> None:
    """Raise Violation, unless `OracleState.oracles` leaves the property's oracle out.

    It returns where the failure is a known one after which the history goes on: the caller then
    takes over the target's state (`OracleState.excuse`).
    """
    if state.oracles and oracle not in state.oracles:
        return
    violation = Violation(prop, oracle, sentence, detail=detail, suspects=suspects, facts=facts)
    violation.state = state
    if not state.excuse(violation):
        raise violation


def describe_request(request: Request, stop: int) -> str:
    """Spell out the inputs that determine a request's content before position `stop`."""
    tokens = ", ".join(map(str, request.tokens[:stop][:12])) + (", ..." if stop > 12 else "")
    parts = [f"tokens 0..{stop - 1} [{tokens}] of request {request.id}"]
    space = request.namespace
    parts += [
        f"{kind} {value!r}"
        for kind, value in (
            ("adapter", space.adapter),
            ("adapter version", space.adapter_version),
            ("salt", space.salt),
            ("key", space.key),
        )
        if value is not None
    ]
    if request.embedded:
        parts.append(f"the first {min(request.embedded, stop)} as embeddings")
    parts += [f"{s.kind} {s.content!r} at {s.start}" for s in request.spans if s.start < stop]
    return ", ".join(parts)


def describe_writer(writer: Writer | None, position: int) -> str:
    """Spell out the content of a slot."""
    if writer is None:
        return "nothing: it was never written"
    return f"{describe_request(writer.request, position + 1)}, epoch {writer.epoch}"


def cause(mismatch: Mismatch, reader: Request, epoch: int, group: int = 0) -> str:
    """Name the property that a wrong read breaks, by how reader and writer differ."""
    writer, stop = mismatch.writer, mismatch.position + 1
    if writer is None:
        return "nothing_is_read_before_it_is_written"
    if writer.group != group:
        return "groups_never_share_blocks"
    written = writer.request
    if mismatch.written_as != mismatch.position:
        return "reads_return_own_content"
    if written.tokens[:stop] != reader.tokens[:stop]:
        same = zip(written.tokens, reader.tokens, strict=False)
        first = next((at for at, (one, other) in enumerate(same) if one != other), stop)
        rows = first < min(written.embedded, reader.embedded)
        return "embeddings_are_separate" if rows else "reads_return_own_content"
    if writer.epoch != epoch:
        return "no_hit_across_epochs"
    if min(written.embedded, stop) != min(reader.embedded, stop):
        return "embeddings_are_separate"
    if written.namespace != reader.namespace:
        keyed = replace(written.namespace, key=reader.namespace.key)
        return "keys_are_separate" if keyed == reader.namespace else "namespaces_are_separate"
    return "spans_are_separate"
