"""Suite `store`: a small arena, a dozen objects of several sizes, clients that come and go."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.cache_server.machine import KINDS, STRANGE, CacheServerMachine
from kvproof.suites.reference.cache_server.properties import PROPERTIES

NUMBERS = 10
LARGEST = 700
SPACES = ("a", "b", "a")
OFTEN = ("profile", "store", "store", "reserve", "copy", "copy", "commit", "acquire", "profile",
         "acquire", "release", "lookup", "profile")  # fmt: skip
PROFILES = {
    "ends": ("wait", "die", "stop", "reserve", "copy"),
    "pins": ("pin", "pin", "unpin", "leave", "flip"),
    "losses": ("restart", "noise", "strange", "lose", "abort"),
    "drops": ("drop", "reserve", "copy", "commit", "clear", "leave"),
}
"""Rare events, by profile."""


def draw_config(draw: Draw) -> Config:
    """Draw sizes, an arena for about half of the objects, and rare events."""
    return _with_profile(draw, draw(st.sampled_from(sorted(PROFILES))))


def _with_profile(draw: Draw, profile: str) -> Config:
    size = st.integers(1, LARGEST) | st.sampled_from((64, 256, 512))
    sizes = draw(st.lists(size, min_size=NUMBERS, max_size=NUMBERS))
    return {
        "sizes": sizes,
        "arena": 64 * draw(st.integers(12, 40)),
        "verify": profile == "pins",
        "profile": profile,
    }


def draw_operation(machine: CacheServerMachine, draw: Draw) -> tuple[str, Arguments]:
    if len(machine.actors) < 2:
        return "join", _join(draw)
    verb = draw(st.sampled_from(OFTEN))
    verb = draw(st.sampled_from(PROFILES[machine.profile])) if verb == "profile" else verb
    alone = _alone(verb, draw)
    if alone is not None:
        return verb, alone
    actor = draw(st.sampled_from(_who(machine, verb)))
    return verb, {"actor": actor, **_arguments(machine, actor, verb, draw)}


def _who(machine: CacheServerMachine, verb: str) -> list[int]:
    actors = machine.actors
    able = {
        "die": [bool(actor.held or actor.copies) for actor in actors],
        "release": [bool(actor.holdings) for actor in actors],
        "copy": [bool(actor.copies) for actor in actors],
        "commit": [bool(actor.rooms) for actor in actors],
        "abort": [bool(actor.rooms) for actor in actors],
    }
    return [at for at, can in enumerate(able.get(verb, ())) if can] or list(range(len(actors)))


def _join(draw: Draw) -> Arguments:
    return {"provable": draw(st.integers(0, 3)) > 0, "space": draw(st.sampled_from(SPACES))}


def _alone(verb: str, draw: Draw) -> Arguments | None:
    if verb == "join":
        return _join(draw)
    if verb in ("wait", "restart"):
        return {}
    if verb == "flip":
        return {"number": draw(st.integers(0, NUMBERS))}
    if verb == "noise":
        return {"kind": draw(st.sampled_from(KINDS)), "seed": draw(st.integers(0, 1000))}
    return None


def _arguments(machine: CacheServerMachine, actor: int, verb: str, draw: Draw) -> Arguments:
    if verb in ("store", "reserve", "acquire", "lookup", "drop"):
        return {"keys": draw(_keys(machine, actor, draw))}
    if verb == "pin":
        keys = draw(_keys(machine, actor, draw))
        return {"name": draw(st.sampled_from(("p", "q"))), "keys": keys}
    if verb == "unpin":
        return {"name": draw(st.sampled_from(("p", "q")))}
    if verb == "copy":
        rooms = [len(room.copies) for room in machine.actors[actor].rooms] or [1]
        room = draw(st.integers(0, len(rooms) - 1))
        at = draw(st.integers(0, max(0, rooms[room] - 1)))
        return {"room": room, "at": at, "half": machine.profile == "ends" and draw(st.booleans())}
    if verb in ("commit", "abort"):
        return {"room": draw(st.integers(0, 1)), "twice": draw(st.booleans())}
    if verb == "release":
        return {"lease": draw(st.integers(0, 2)), "twice": draw(st.booleans())}
    if verb == "stop":
        return {"stopped": draw(st.booleans())}
    return {"kind": draw(st.sampled_from(sorted(STRANGE)))} if verb == "strange" else {}


def _keys(machine: CacheServerMachine, actor: int, draw: Draw) -> st.SearchStrategy[list[int]]:
    """Half of the time, objects stored or in progress, of a silent client if there is one."""
    space = machine.actors[actor].space
    copies = machine.copies(space)
    silent = sorted({copy.number for copy in copies if copy.silent})
    known = sorted({*machine.model.of(space), *(copy.number for copy in copies)})
    some = (silent or known or range(NUMBERS)) if draw(st.booleans()) else range(NUMBERS)
    return st.lists(st.sampled_from(some), min_size=1, max_size=4)


def _of(profile: str) -> Callable[[Draw], Config]:
    return lambda draw: _with_profile(draw, profile)


SUITE = ComponentSuite(
    "store", PROPERTIES, draw_config, CacheServerMachine, draw_operation, tuple(map(_of, PROFILES))
)
