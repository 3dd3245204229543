"""The suite `states`: its operations and their frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.recurrent_states.machine import RecurrentStatesMachine
from kvproof.suites.reference.recurrent_states.model import HUNG, RESERVED
from kvproof.suites.reference.recurrent_states.properties import PROPERTIES

REQUESTS = ("a", "b", "c", "d")
TEXTS = ("xxxxxxxxxxxx", "xxxyyyyyyyyy", "xxxyyyzzzzzz")
"""Prompts that begin alike, so that one's checkpoint is another's hit."""
RECENT = 4
"""Checkpoints, gone ones included, that a verb may get in any stage."""

ROWS = 22
"""Rows of the pool in which copies are merged."""

Values: TypeAlias = "Sequence[int] | Sequence[str]"


def _draw_config(draw: Draw) -> Config:
    shared = draw(st.booleans())
    return {
        "home": "shared" if shared else "separate",
        "one_order": draw(st.booleans()),
        "width": draw(st.integers(1, 3)),
        "blocks": draw(st.sampled_from((6, 9, 12, 3, 4, 5))),
        "most_running": draw(st.sampled_from((2, 3, 4, 1))),
        "budget": draw(st.integers(0, 2)),
        "verbs": [verb for verb in _OPTIONAL if draw(st.booleans())],
    }


def _propose(machine: RecurrentStatesMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw any verb, but mostly one that can do something, on a checkpoint that allows it."""
    pure = draw(st.integers(0, 15))
    if pure in _PURE:
        verb, draw_arguments = _PURE[pure]
        return verb, draw_arguments(draw)
    fitting = _fitting(machine)
    verb = draw(st.sampled_from(_verbs(machine, fitting)))
    strategies = {name: _STRATEGIES[name] for name in _ARGUMENTS[verb] if name in _STRATEGIES}
    if "request" in _ARGUMENTS[verb]:
        strategies["request"] = _mostly(fitting.get(f"{verb} request", fitting[verb]), REQUESTS)
    if "number" in _ARGUMENTS[verb]:
        last = len(machine.checkpoints)
        strategies["number"] = _mostly(fitting[verb], range(max(0, last - RECENT), last))
    return verb, {name: draw(strategy) for name, strategy in strategies.items()}


def _verbs(machine: RecurrentStatesMachine, fitting: dict[str, Values]) -> list[str]:
    """Return the verbs of this history, the likelier ones several times."""
    known, numbered = machine.config["verbs"], bool(machine.checkpoints)
    verbs = [
        verb
        for verb, arguments in _ARGUMENTS.items()
        if (verb in known or verb not in _OPTIONAL) and (numbered or "number" not in arguments)
    ]
    verbs += [verb for verb in _OFTEN if verb in verbs and fitting[verb]]
    verbs += ["keep"] * 6 if machine.model.drafts else []
    restoring = [request for request in machine.model.restoring if request in machine.model.running]
    verbs += ["batch", "batch", "reserve", "release"] * 2 if restoring else []
    return verbs + ["saved"] * 4 * bool(_orphans(machine))


def _orphans(machine: RecurrentStatesMachine) -> list[int]:
    """Return the checkpoints whose copy is in flight while its producer is gone."""
    records, running = enumerate(machine.model.records), machine.model.running
    return [n for n, each in records if "save" in each.pins and each.request not in running]


def _mostly(fit: Values, every: Values) -> st.SearchStrategy[int | str]:
    return st.sampled_from([*every, *[*fit] * 8])


def _fitting(machine: RecurrentStatesMachine) -> dict[str, Values]:
    """Return the checkpoints, or else the requests, that a verb can apply to."""
    model, records = machine.model, list(enumerate(machine.model.records))
    reserved = [number for number, record in records if record.stage == RESERVED]
    pinned = [number for number, record in records if record.pins]
    hung = [number for number, record in records if record.stage == HUNG]
    running = sorted(model.running)
    copying = sorted({each.request for _, each in records if "save" in each.pins} & {*running})
    waiting = [request for request in REQUESTS if request not in model.running]
    return {
        "publish": reserved,
        "discard": reserved,
        "saved": [n for n in pinned if "save" in model.records[n].pins] + _orphans(machine) * 3,
        "detach": pinned,
        "drop": model.order,
        "touch": model.order,
        "pin": hung + reserved,
        "pin request": waiting,
        "arrive request": waiting,
        "remember request": running,
        "unpin": sorted(model.restoring),
        "keep": sorted(model.drafts),
        "arrive": waiting,
        "resume": waiting if model.order else (),
        "remember": REQUESTS,
        "batch": running,
        "release": [*model.restoring] * 3 + copying * 2 + running,
        **dict.fromkeys(("verify", "step", "reserve", "drafts_of"), running),
    }


def _draw_runs(draw: Draw) -> Arguments:
    runs = st.tuples(st.integers(1, 5), st.integers(0, 1), st.integers(1, 3))
    destination = 6
    pairs: list[tuple[int, int]] = []
    for source, gap, size in draw(st.lists(runs, min_size=1, max_size=4)):
        pairs += [(source + i, destination + gap + i) for i in range(size)]
        destination += gap + size
    unfit = st.tuples(st.integers(0, 11), st.integers(6, ROWS))
    return {"pairs": [*pairs[::-1], *draw(st.lists(unfit, max_size=1))], "rows": ROWS}


def _draw_chain(draw: Draw) -> Arguments:
    """Draw a request of some units, its hit and its junction, both on free unit borders."""
    unit = draw(st.integers(1, 4))
    prompt = draw(st.integers(1, 20 * unit))
    borders = st.integers(0, (prompt - 1) // unit).map(lambda units: units * unit)
    hit, junction = sorted([draw(borders), draw(borders)])
    spans, position = [], 0
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=3)):
        if position + gap + length <= prompt:
            spans.append([position + gap, position + gap + length])
            position += gap + length
    hit, junction = (
        0 if any(start < border < end for start, end in spans) else border
        for border in (hit, junction)  # a recurrent hit inside a span is none (M2)
    )
    return {
        "hit": hit,
        "prompt": prompt,
        "total": prompt + draw(st.integers(0, 3 * unit)),
        "chunk": draw(st.integers(1, 8 * unit)),
        "unit": unit,
        "junction": junction,
        "interval": unit * draw(st.integers(0, 2)),
        "spans": spans,
    }


_PURE = {14: ("chain", _draw_chain), 15: ("runs", _draw_runs)}
"""Queries without relation to the cache's state: one operation in eight."""

_ARGUMENTS = {
    "remember": ("request", "text", "count", "decode", "land"),
    "arrive": ("request", "text"),
    "resume": ("request", "text"),
    "step": ("request", "count"),
    "reserve": ("request", "decode"),
    "release": ("request",),
    "unpin": ("request",),
    "keep": ("request", "accepted"),
    "hold": ("count",),
    "batch": ("order", "cut"),
    "drafts_of": ("request", "count"),
    "verify": ("request", "count", "accepted"),
    "pin": ("number", "request"),
    "publish": ("number", "saved"),
    **dict.fromkeys(("saved", "discard", "drop", "detach", "touch"), ("number",)),
    "evict": (),
    "clear": (),
}
_OPTIONAL = ("pin", "discard", "drop", "detach", "touch", "evict", "clear", "hold")
"""Each history leaves out some verbs, so that others meet more often."""
_OFTEN = (
    *("remember", "remember", "arrive", "resume", "reserve", "reserve", "publish", "publish"),
    *("publish", "unpin", "unpin", "verify", "verify", "drafts_of", "pin", "pin", "saved"),
    *("batch", "batch", "step", "release", "detach"),
)
"""Verbs that are likelier, as long as they can apply to something."""

_MOSTLY = st.sampled_from((True, True, True, False))
_STRATEGIES: dict[str, st.SearchStrategy[object]] = {
    "request": st.sampled_from(REQUESTS),
    "text": st.sampled_from(TEXTS),
    "count": st.integers(1, 4),
    "accepted": st.sampled_from((0, 1, 2, 1, 2, 3, 4)),
    "decode": st.sampled_from((True, True, False)),
    "land": _MOSTLY,
    "saved": st.sampled_from((False, False, True)),
    "order": st.permutations(range(4)).flatmap(
        lambda order: st.integers(1, 4).map(lambda count: order[:count])
    ),
    "cut": st.integers(0, 4),
}

SUITE = ComponentSuite(
    name="states",
    properties=PROPERTIES,
    draw_config=_draw_config,
    machine=RecurrentStatesMachine,
    draw_operation=_propose,
)
