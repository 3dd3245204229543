"""Operations and answers in the words of the field, for reports."""

from __future__ import annotations

from dataclasses import asdict
from functools import singledispatch

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Batch,
    Completed,
    Evicted,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
)


@singledispatch
def answer(value: object) -> str:
    """Format a target's answer."""
    if isinstance(value, Exception):
        return f"died: {value}"
    return f"{value} tokens"


@answer.register
def _(value: Scheduled) -> str:
    hit = f"hit {value.hit}, " if value.hit or not value.start else ""
    tables = "" if value.tables == value.blocks else f", pages {_ids(value.tables)}"
    computes = f"{value.start}..{value.stop - 1}" if value.stop > value.start else "nothing"
    moves = [
        f"{words} {_moves(copies)}"
        for words, copies in (("restores", value.copies), ("saves", value.saves))
        if copies
    ]
    if value.encode:
        moves.append(f"encodes spans {' '.join(map(str, value.encode))}")
    return ", ".join(
        [
            f"step {value.step}: {hit}computes {computes}",
            f"blocks {_ids(value.blocks)}{tables}",
            *moves,
        ]
    )


def _moves(copies: tuple[tuple[int, int, int], ...]) -> str:
    return " ".join(f"{source}->{target}" for _, source, target in copies)


@answer.register
def _(value: Completed) -> str:
    blocks = f", blocks {_ids(value.blocks)}" if value.blocks else ""
    return f"step {value.step} is done{blocks}"


@answer.register
def _(value: Refused) -> str:
    numbers = f": needs {value.needed}, available {value.available}" if value.needed else ""
    return f"refused, {value.reason}{numbers} {value.detail}".strip()


@answer.register
def _(value: Released) -> str:
    return f"gave back {_ids(value.blocks)}"


@answer.register
def _(value: Evicted) -> str:
    return f"evicted {_ids(value.blocks)}"


@answer.register
def _(value: tuple) -> str:  # type: ignore[type-arg]  # singledispatch takes no parameters
    return "rows " + " ".join("missing" if row is None else str(row) for row in value)


@answer.register
def _(value: Batch) -> str:
    return "rows " + "; ".join(_ids((row,)) for group in value.tables for row in group)


def written(step: Scheduled, size: int) -> str:
    """Format where a step of one group, with blocks of `size` tokens, writes."""
    blocks = step.blocks[0]
    parts = [
        f"{max(step.start, place * size)}..{min(step.stop, (place + 1) * size) - 1}"
        f" to block {blocks[place]}"
        for place in range(step.start // size, min(-(-step.stop // size), len(blocks)))
    ]
    more = f" and {len(parts) - _MOST_BLOCKS} more blocks" if len(parts) > _MOST_BLOCKS else ""
    return f"writes positions {', '.join(parts[:_MOST_BLOCKS])}{more}" if parts else ""


_MOST_BLOCKS = 6


def _ids(groups: tuple[tuple[int, ...], ...]) -> str:
    return " | ".join(" ".join(map(str, ids)) or "nothing" for ids in groups) or "nothing"


def arguments(operation: ops.Operation) -> str:
    """Format the arguments of a verb."""
    request = getattr(operation, "request", None)
    if isinstance(request, Request):
        compute = getattr(operation, "compute", None)
        return _request(request) + (f", compute {compute}" if compute is not None else "")
    if isinstance(operation, ops.Extend):
        compute = "" if operation.compute is None else f", compute {operation.compute}"
        drafts = f", drafts {_tokens(operation.drafts)}" if operation.drafts else ""
        return f"{operation.id} by {_tokens(operation.tokens)}{compute}{drafts}"
    if isinstance(operation, ops.Complete):
        kept = "" if operation.accepted is None else f"{operation.accepted} drafts stay"
        return ", ".join(filter(None, (kept, "" if operation.routed else "no expert rows")))
    return ", ".join(
        " ".join(value) if isinstance(value, tuple) else str(value)
        for value in asdict(operation).values()
    )


def _request(request: Request) -> str:
    space = {name: value for name, value in asdict(request.namespace).items() if value is not None}
    parts = [f"{request.id}: {_tokens(request.tokens)}"]
    parts += [f"{name.replace('_', ' ')} {value!r}" for name, value in space.items()]
    parts += [_span(span) for span in request.spans]
    parts += [
        words
        for words, applies in (
            ("may not read", not request.read),
            ("may not store", not request.store),
            ("resumed", request.resumed),
        )
        if applies
    ]
    return ", ".join(parts)


def _span(span: Span) -> str:
    last = span.start + span.length - 1
    return f"{span.kind} {span.content or '(no hash)'} at {span.start}..{last}"


def _tokens(tokens: tuple[int, ...]) -> str:
    if not tokens:
        return "no tokens"
    shown = " ".join(map(str, tokens[:24])) + (" ..." if len(tokens) > 24 else "")
    return f"{len(tokens)} token{'s' if len(tokens) > 1 else ''} [{shown}]"
