"""Writes and checks the canary's words on the device, in stream order, without a host's help.

One program a request goes over its ids. They are kept on the device: those of a prompt are put
there when it comes, and each launch adds the ids that the model computes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvproof.kernels.canary import fingerprints

_GOLDEN = tl.constexpr(fingerprints.GOLDEN)
_FIRST = tl.constexpr(fingerprints.FIRST)
_SECOND = tl.constexpr(fingerprints.SECOND)
_PADDING = tl.constexpr(fingerprints.PADDING)
_FAR = tl.constexpr(1 << 62)


@triton.jit
def _hash(token, position):
    """The term of one token in the sum `prefix_prints`."""
    x = (position.to(tl.uint64) << 32) + token.to(tl.uint64) + _GOLDEN
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return (x ^ (x >> 31)).to(tl.int64, bitcast=True)


@triton.jit
def _address(slot, page_stride, PAGE: tl.constexpr):
    slot = slot.to(tl.int64)
    return slot // PAGE * page_stride + slot % PAGE


@triton.jit
def _before(tokens, start, TILE: tl.constexpr):
    """The sum over the tokens before a launch."""
    total = start * 0
    first = start * 0
    while first < start:
        position = first + tl.arange(0, TILE)
        there = position < start
        token = tl.load(tokens + position, mask=there, other=0)
        total += tl.sum(tl.where(there, _hash(token, position), 0), axis=0)
        first += TILE
    return total


@triton.jit(do_not_specialize=["count", "padded", "width", "page_stride"])
def write(
    words, tokens, salts, requests, inputs, positions, starts, slots,
    count, padded, width, page_stride,
    PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the words of a launch by its slot mapping; the last program has the padding."""
    row = tl.program_id(0)
    at = tl.load(starts + row).to(tl.int64)
    if row == count:
        while at < padded:
            place = at + tl.arange(0, TILE)
            slot = tl.load(slots + place, mask=place < padded, other=-1)
            word = tl.full((TILE,), _PADDING, tl.int64)
            tl.store(words + _address(slot, page_stride, PAGE), word, mask=slot >= 0)
            at += TILE
        return
    end = tl.load(starts + row + 1)
    request = tl.load(requests + row).to(tl.int64)
    start = tl.load(positions + at, mask=at < end, other=0).to(tl.int64)
    total = tl.load(salts + request) + _before(tokens + request * width, start, TILE)
    while at < end:
        place = at + tl.arange(0, TILE)
        there = place < end
        position = tl.load(positions + place, mask=there, other=0)
        token = tl.load(inputs + place, mask=there, other=0)
        tl.store(tokens + request * width + position, token, mask=there)
        term = tl.where(there, _hash(token, position), 0)
        slot = tl.load(slots + place, mask=there, other=-1)
        word = total + tl.cumsum(term, axis=0)
        tl.store(words + _address(slot, page_stride, PAGE), word, mask=slot >= 0)
        total += tl.sum(term, axis=0)
        at += TILE


@triton.jit
def _lot(request, step):
    """A number below 1,024 for a request in a step, another one in the next."""
    place = tl.zeros((1,), tl.int64) + request
    return tl.sum(_hash(place, place * 0 + step) & 1023, axis=0)


@triton.jit(do_not_specialize=["step", "share", "width", "table_stride", "page_stride", "window"])
def check(
    words, tokens, salts, requests, positions, starts, table, seen,
    step, share, width, table_stride, page_stride, window,
    PAGE: tl.constexpr, ENTRY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compare every word that attention reads by its table.

    `ENTRY`: positions of an entry of the table. `window`: tokens that are visible; 0 for all.
    `seen`: slots checked, slots that were wrong, and the first of them (step, row, position).
    """
    row = tl.program_id(0)
    request = tl.load(requests + row).to(tl.int64)
    if _lot(request, step) >= share:
        return
    begin = tl.load(starts + row).to(tl.int64)
    end = tl.load(starts + row + 1).to(tl.int64)
    start = tl.load(positions + begin, mask=begin < end, other=0).to(tl.int64)
    stop = start + end - begin
    visible = tl.where(window > 0, tl.maximum(start + 1 - window, 0), 0)
    total = tl.load(salts + request)
    wrong = stop * 0
    least = wrong + _FAR
    first = stop * 0
    while first < stop:
        position = first + tl.arange(0, TILE)
        there = position < stop
        token = tl.load(tokens + request * width + position, mask=there, other=0)
        term = tl.where(there, _hash(token, position), 0)
        expected = total + tl.cumsum(term, axis=0)
        total += tl.sum(term, axis=0)
        reads = there & (position >= visible)
        entry = tl.load(table + row * table_stride + position // ENTRY, mask=reads, other=0)
        slot = entry.to(tl.int64) * ENTRY + position % ENTRY
        word = tl.load(words + _address(slot, page_stride, PAGE), mask=reads, other=0)
        bad = reads & (word != expected)
        wrong += tl.sum(bad.to(tl.int64), axis=0)
        least = tl.minimum(least, tl.min(tl.where(bad, position, _FAR), axis=0))
        first += TILE
    tl.atomic_add(seen, stop - visible)
    if wrong > 0:
        tl.atomic_add(seen + 1, wrong)
        where = (step.to(tl.int64) << 40) + (row.to(tl.int64) << 24) + least
        tl.atomic_min(seen + 2, where)
