"""After which tokens a step saves the state, so that shared prompts hit (S6, S8).

A state can be restored only after exactly the tokens that it has read, so positions must be
chosen where other requests will want to begin: where this prompt leaves what is cached (its
*junction*), at the last unit border of each step that an equal prompt can hit, at the end of the
prompt for those that go on from it, and every `interval` tokens of decoding. A prompt saves at
most two states more than it has steps.

A step may pass such a position: its kernels scan the tokens in chunks and hand out the state
between two of them, so no step ends early for the sake of a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kvproof.reference.core.identity import Span

_START = attrgetter("start")


def saved_after(
    start: int,
    stop: int,
    prompt: int,
    unit: int,
    junction: int = 0,
    interval: int = 0,
    spans: Sequence[Span] = (),
) -> list[int]:
    """Return after how many tokens, in order, the step [start, stop) saves the state.

    At the junction; at the last unit border before the last token of the prompt; at the end of
    the prompt if that is a unit border; beyond it at the last multiple of `interval`, which is a
    multiple of the unit, or never if it is 0. Never inside a span (M2). `spans` are in order and
    do not overlap.
    """
    saved = [junction] if start < junction <= stop else []
    if start < prompt:
        last = stop if stop < prompt else prompt - 1
        border = last // unit * unit
        if spans:
            border = _outside_spans(start, border, unit, spans)
        if border > start and border != junction:
            saved.append(border)
        if stop >= prompt and prompt % unit == 0:
            saved.append(prompt)
    if interval and stop > prompt:
        multiple = stop // interval * interval
        if multiple > start and multiple > prompt:
            saved.append(multiple)
    return saved


def _outside(spans: Sequence[Span], position: int) -> bool:
    """Tell whether no span lies on both sides of a position. O(log spans)."""
    index = bisect_right(spans, position - 1, key=_START) - 1
    return index < 0 or position >= spans[index].start + spans[index].length


def _outside_spans(start: int, border: int, unit: int, spans: Sequence[Span]) -> int:
    """Return the last unit border in (start, border] outside spans, or a position <= start."""
    while border > start and not _outside(spans, border):
        index = bisect_right(spans, border - 1, key=_START) - 1
        border = spans[index].start // unit * unit
    return border
