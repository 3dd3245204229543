"""Walking the prefix index along a request: the cost is per node, not per token (T5)."""

from __future__ import annotations

import numpy as np

from kvproof.reference.core.identity import TOKEN_BYTES, Segment, Span
from kvproof.reference.prefix.node import Match, Node


def longest_match(
    node: Node, tokens: bytes, segments: tuple[Segment, ...], limit: int, stride: int
) -> Match:
    """Return the longest prefix below the root `node`, up to `limit` units of `stride` bytes."""
    inside = position = 0
    end = limit * stride
    for start, stop, marks in segments:
        if position < start or inside < node.units:
            break
        node, inside, position = walk(node, tokens, position, min(stop, end), marks, stride)
    return Match(node, inside, position // stride)


def walk(
    node: Node, tokens: bytes, position: int, stop: int, marks: tuple[Span, ...], stride: int
) -> tuple[Node, int, int]:
    """Follow one segment from the end of `node`; returns (node, units inside it, position).

    One dictionary lookup and one comparison of bytes for each node (T1, H3).
    """
    inside = node.units
    while position + stride <= stop:
        first = tokens[position : position + stride]
        child = node.children.get((first, marks) if marks else first)
        if child is None:
            break
        node, marks, edge = child, (), child.tokens
        size = len(edge)
        if position + size > stop or not tokens.startswith(edge, position):
            inside = equal_units(edge, tokens, position, min(size, stop - position), stride)
            position += inside * stride
            break
        inside = node.units
        position += size
    return node, inside, position


def equal_units(
    edge: bytearray, tokens: bytes | bytearray, position: int, size: int, stride: int
) -> int:
    """Count leading whole units in which `edge` equals `tokens` from byte `position` on (H3)."""
    count = size // TOKEN_BYTES
    here = np.frombuffer(edge, np.int32, count)
    there = np.frombuffer(tokens, np.int32, count, position)
    differs = here != there
    first = int(differs.argmax())
    equal = first if differs[first] else count
    return equal * TOKEN_BYTES // stride
