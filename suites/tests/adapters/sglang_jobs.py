"""A job that runs histories on SGLang's host tier with faults planted in the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvproof.harness.adapters.sglang.target import SglangTarget
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Group, Request, TargetConfig
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session

_PLAIN = TargetConfig(6, 4, host_blocks=9, host_policy="write_through")
_STATES = replace(_PLAIN, groups=(Group("full", 4), Group("state", 4)), state_rows=11, host_rows=4)


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


def _loaded_states(cache: Any, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change what is loaded beside the pages."""
    controller = cache.cache_controller
    made = controller.load

    def load(*given: Any, extra_pools: list[Any] | None = None, **rest: Any) -> Any:
        return made(*given, extra_pools=change(extra_pools or []) or None, **rest)

    controller.load = load


def _states_of_the_other_prompt(cache: Any) -> None:
    def change(transfers: list[Any]) -> list[Any]:
        for each in transfers:
            each.host_indices = 1 - each.host_indices
        return transfers

    _loaded_states(cache, change)


def _running_states_are_not_loaded(cache: Any) -> None:
    _loaded_states(cache, lambda transfers: transfers[:1])


def _nothing(_: Any) -> None:
    """The engine as it is."""


FAULTS: dict[str, tuple[Callable[[Any], None], TargetConfig]] = {
    "backups lock nothing": (_backups_lock_nothing, _PLAIN),
    "loads take the next page": (_loads_take_the_next_page, _PLAIN),
    "nothing is loaded": (_nothing_is_loaded, _PLAIN),
    "states are those of the other prompt": (_states_of_the_other_prompt, _STATES),
    "running states are not loaded": (_running_states_are_not_loaded, _STATES),
    "none": (_nothing, _PLAIN),
    "none, with states": (_nothing, _STATES),
}
"""What is done to a cache, and its configuration."""


def broken(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the property that two prompts break which take turns in a pool for one."""
    plant, config = FAULTS[arguments["fault"]]
    target = SglangTarget(config)
    plant(target._cache)
    session = Session(target, config)
    try:
        for turn, name in enumerate("abab"):
            _serve(session, f"{name}{turn}", (ord(name), *range(16)))
    except Violation as violation:
        return {"property": violation.property}
    return {"property": "", "hits": session.situations.seen["a hit goes on in the host tier"]}


def _serve(session: Session, name: str, tokens: tuple[int, ...]) -> None:
    session.apply(ops.Admit(Request(name, tokens)))
    session.apply(ops.Finish(name))
