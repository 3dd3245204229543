"""The suite `prefixes`: a server that keeps chunks of prefixes for engines, on targets.

Sequences fork, tenants share tokens, windows leave blocks as an engine computes on, and
look-ups wait while others store, drop and evict. Calls, keywords in JSON:

- `open(room, eviction, separate)`: an empty server; `traits() -> {"windows"}`, which is false if it
  serves full attention alone; `engine(instance, tables) -> {"parts", "windows"}`: an engine with
  blocks of its own for each table of `{"blocks", "block", "row", "window", "type"}` (of numbers),
  and the parts of an object of a chunk: tables by object, and the chunks at the end of a hit
  that it is needed for, -1 for all.
- `write(instance, table, blocks)`, `fill(instance, byte)`, `read(instance, table, blocks)`.
- `store(ids, **chunks) -> [well, kept]` (None: not reported), `ask(**chunks) -> chunks found`,
  `take(ids, skip, **chunks) -> well`, `free(**chunks)`, `end(request)`, where `chunks` are
  `instance`, `request`, `tokens`, `start`, `end` and `salt`.
- `delete(part, last, **chunks) -> [deleted, locked]`, `evict(share)`, `there(part, **chunks)`,
  `rest(locked, patience_s) -> status`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.reference.stored_prefixes.machine import ROOM, PrefixesMachine
from kvproof.suites.reference.stored_prefixes.model import BLOCK, CHUNK, CHUNKS, SEQUENCES, TENANTS
from kvproof.suites.reference.stored_prefixes.properties import PROPERTIES

FULL = ((-1,), (-1, -1))
WINDOWS = ((-1,), (-1, 32), (-1, 16, 48), (-1, -1), (16,), (-1, 64, 16), (-1, 24), (40,), (24,))
"""Windows of the groups of a model, in tokens."""
_OFTEN = ("store", "store", "store", "ask", "ask", "ask", "ask", "take", "take", "take", "take",
          "store", "ask", "quit", "drop", "evict")  # fmt: skip
_TROUBLE = ("short_store", "short_take", "wrong_store")
_NO_WINDOWS = "the target serves full attention alone"
_WITHOUT = ("what_a_window_left_is_not_served", "null_blocks_are_not_written")
_WHY_NOT = "the reference finds chunks inside of its engine: parts keys, tiers and tiered"


def draw_config(
    draw: Draw,
    *,
    windows: Sequence[tuple[int, ...]] = WINDOWS,
    separate: bool = True,
    trouble: bool = False,
    other: str = "",
) -> Config:
    """Draw a model, and where its sequences fork.

    `separate`: windows have objects of their own; `other`: the type of another engine's numbers.
    """
    forks = st.integers(0, CHUNKS * CHUNK - 1)
    return {
        "windows": list(draw(st.sampled_from(windows))),
        "separate": separate,
        "forks": draw(st.lists(forks, min_size=SEQUENCES, max_size=SEQUENCES)),
        "seed": draw(st.integers(0, 99)),
        "trouble": trouble,
        "other": other,
    }


def draw_operation(machine: PrefixesMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw an operation."""
    verb = draw(st.sampled_from(_OFTEN + (("ask_as_other",) * 4 if machine.other else ())))
    if verb in ("take", "quit") and not machine.model.pending:
        verb = "ask"
    if machine.trouble and draw(st.integers(0, 9)) == 0:
        verb = draw(st.sampled_from(_TROUBLE))
    if verb in ("take", "quit", "short_take"):
        return verb, _of_pending(draw, verb)
    if verb == "evict":
        return verb, {"share": draw(st.sampled_from((0.1, 0.3, 0.6)))}
    return verb, {
        "sequence": draw(st.integers(0, SEQUENCES - 1)),
        "salt": draw(st.sampled_from(TENANTS)),
        **_chunks(draw, verb),
    }


def _of_pending(draw: Draw, verb: str) -> Arguments:
    number: Arguments = {"number": draw(st.integers(0, 2))}
    if verb != "take":
        return number
    return {
        **number,
        "start": draw(st.sampled_from((0, 0, 1, 2))),
        "skip": draw(st.sampled_from((0, 0, 1, 3, 4, 5))),
        "nulls": draw(st.booleans()),
        "first": draw(st.integers(0, 50)),
    }


def _chunks(draw: Draw, verb: str) -> Arguments:
    if verb in ("ask", "ask_as_other"):
        return {"most": draw(st.sampled_from((CHUNKS, CHUNKS, 1, 2, 3, 5)))}
    if verb == "drop":
        return {"at": draw(st.integers(0, CHUNKS - 1)), "part": draw(st.integers(0, 2))}
    start = draw(st.sampled_from((0, 0, 0, 1, 2, 5)))
    chosen = {"start": start, "end": draw(st.integers(start + 1, CHUNKS))}
    if verb != "store":
        return chosen
    ahead = draw(st.sampled_from((0, 0, 1, 2, 5, 8, 20)))
    return {**chosen, "ahead": ahead * BLOCK, "first": draw(st.integers(0, 50))}


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the part on a target.

    One history in four has calls that must be refused, one an engine with other numbers.
    """
    opened: Arguments = {"room": ROOM, "eviction": "LRU", "separate": True}
    _, traits = ask(("open", opened), ("traits", {}))
    windows = traits.get("windows", True)
    draw = partial(draw_config, windows=WINDOWS if windows else FULL)
    profiles = (
        draw,
        partial(draw, separate=False),
        partial(draw, trouble=True),
        partial(draw, other="float16"),
    )
    part = SUITE._replace(machine=partial(PrefixesMachine, ask), missing=str, profiles=profiles)
    return TargetProvided(part, {} if windows else dict.fromkeys(_WITHOUT, _NO_WINDOWS))


def _no_subject(*_: object) -> PrefixesMachine:
    raise LookupError(_WHY_NOT)


SUITE = ComponentSuite(
    "prefixes",
    PROPERTIES,
    draw_config,
    _no_subject,
    draw_operation,
    missing=lambda: _WHY_NOT,
    target_provided=offered,
)
