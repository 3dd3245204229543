"""Where a step ends, and where a state is saved, so that shared prompts hit (S6, S8, M3).

A state can be restored only after exactly the tokens that it has read, so positions must be
chosen where other requests will want to begin: where this prompt leaves what is cached (its
*junction*), at the last unit border that an equal prompt can hit, at the ends of chunks, and
every `interval` tokens of decoding. A prompt saves at most twice more than it has chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal

from kvproof.reference.identity import Span

Save = Literal["no", "prefill", "decode"]
"""Whether a state is worth a checkpoint, and of which kind; only `decode` ones are replaceable."""

_START = attrgetter("start")


def next_stop(
    start: int,
    stop: int,
    *,
    prompt: int,
    unit: int,
    junction: int = 0,
    interval: int = 0,
    spans: Sequence[Span] = (),
) -> int:
    """Return where a step that begins at `start` and could compute up to `stop` has to end.

    At the junction, else at the last unit border before the prompt's last token, else beyond the
    prompt at the next multiple of `interval`, else at `stop`; there, before the end of the
    prompt, at a unit border if one is left. Never inside a span: the result lies beyond `stop`
    only if `start` is where a span begins that is longer than the step. `spans` are in order and
    do not overlap.
    """
    decoded = (max(start, prompt) // interval + 1) * interval if interval else 0
    last = _last_border(start, (prompt - 1) // unit * unit, unit, spans)
    for wanted in (junction, last, decoded):
        if start < wanted < stop and (not spans or outside(spans, wanted)):
            return wanted
    if stop < prompt:
        border = _last_border(start, stop, unit, spans)
        if border > start:
            return border
    return _whole_spans(start, stop, spans) if spans else stop


def save_kind(
    stop: int, *, prompt: int, unit: int, interval: int = 0, spans: Sequence[Span] = ()
) -> Save:
    """Say whether the state after `stop` tokens becomes a checkpoint (S6).

    While the prompt is computed: each unit border at which a step ends. Decoding: each multiple
    of `interval`, which is a multiple of the unit; none if it is 0. Never inside a span (M2).
    """
    if stop % unit or (spans and not outside(spans, stop)):
        return "no"
    if stop <= prompt:
        return "prefill"
    return "decode" if interval and stop % interval == 0 else "no"


def outside(spans: Sequence[Span], position: int) -> bool:
    """Tell whether no span lies on both sides of a position."""
    return _end_of_span(spans, position) == position


def _end_of_span(spans: Sequence[Span], position: int) -> int:
    """Return the end of the span that is cut at `position`, else `position`. O(log spans)."""
    index = bisect_right(spans, position - 1, key=_START) - 1
    return max(position, spans[index].start + spans[index].length) if index >= 0 else position


def _last_border(start: int, stop: int, unit: int, spans: Sequence[Span]) -> int:
    """Return the last unit border in (start, stop] outside spans, or a position <= start."""
    border = stop // unit * unit
    while spans and border > start and not outside(spans, border):
        index = bisect_right(spans, border - 1, key=_START) - 1
        border = spans[index].start // unit * unit
    return border


def _whole_spans(start: int, stop: int, spans: Sequence[Span]) -> int:
    """Move `stop` out of a span: to its start, or to its end if it begins at or before `start`."""
    if outside(spans, stop):
        return stop
    first = spans[bisect_right(spans, stop - 1, key=_START) - 1].start
    return first if first > start else _end_of_span(spans, stop)
