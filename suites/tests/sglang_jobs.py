"""A job that runs a history on SGLang's host tier with a fault planted in the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.harness import operations as ops
from kvproof.harness.adapters.sglang import SglangTarget
from kvproof.harness.session import Session
from kvproof.harness.target import Request, TargetConfig
from kvproof.harness.violation import Violation

_CONFIG = TargetConfig(6, 4, host_blocks=9, host_policy="write_through")


def _backups_lock_nothing(cache: Any) -> None:
    made = cache._execute_and_commit_kv_backup
    cache._execute_and_commit_kv_backup = lambda action, write_back=False: made(
        action, write_back=True
    )


def _loads_take_the_next_page(cache: Any) -> None:
    controller = cache.cache_controller
    made = controller.load

    def load(host_indices: Any, **rest: Any) -> Any:
        return made(host_indices.roll(4), **rest)

    controller.load = load


def _nothing_is_loaded(cache: Any) -> None:
    cache.init_load_back = lambda params: (0, params.req.last_node)


def _nothing(_: Any) -> None:
    """The engine as it is."""


FAULTS: dict[str, Callable[[Any], None]] = {
    "backups lock nothing": _backups_lock_nothing,
    "loads take the next page": _loads_take_the_next_page,
    "nothing is loaded": _nothing_is_loaded,
    "none": _nothing,
}
"""What is done to a cache."""


def broken(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the property that two prompts break which take turns in a pool for one."""
    target = SglangTarget(_CONFIG)
    FAULTS[arguments["fault"]](target._cache)
    session = Session(target, _CONFIG)
    try:
        for turn, name in enumerate("abab"):
            _serve(session, f"{name}{turn}", (ord(name), *range(15)))
    except Violation as violation:
        return {"property": violation.property}
    return {"property": "", "hits": session.situations.seen["a hit goes on in the host tier"]}


def _serve(session: Session, name: str, tokens: tuple[int, ...]) -> None:
    session.apply(ops.Admit(Request(name, tokens)))
    session.apply(ops.Finish(name))
