"""Known failures of SGLang; records and pages of the findings have the causes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Request, Scheduled
from kvproof.harness.oracle.state import OracleState, RequestState
from kvproof.suites.framework.failed import Failed


def state_of_another_length(found: Failed) -> bool:
    """The state that is hit was saved by a step that began inside a page, after more tokens."""
    live, hit = found.fact("live", RequestState), found.fact("hit", int)
    unit = found.state.layout.unit
    return found.fact("why", str) == "state" and any(
        step.start % unit and hit < tokens < hit + unit and _same(found.state, request, live, hit)
        for request, step in _steps(found.state)
        for use in step.states
        for tokens, _ in use.writes
    )


def _steps(state: OracleState) -> list[tuple[Request, Scheduled]]:
    requests: dict[str, Request] = {}
    found: list[tuple[Request, Scheduled]] = []
    for operation, answer in state.history:
        if isinstance(operation, ops.Admit):
            requests[operation.request.id] = operation.request
        if isinstance(operation, (ops.Admit, ops.Extend)) and isinstance(answer, Scheduled):
            name = operation.request.id if isinstance(operation, ops.Admit) else operation.id
            found.append((requests[name], answer))
    return found


def _same(state: OracleState, request: Request, live: RequestState, hit: int) -> bool:
    prints = state.prints(request)
    return len(prints) >= hit and prints[hit - 1] == live.prints[hit - 1]


def refused_admission_evicts(found: Failed) -> bool:
    """A prompt hits a state, a slot is freed for its copy, and then its pages do not fit."""
    operation, answer = found.state.history[-1]
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    rows = [len(rows) for rows in (after.dropped or ())[1:]]
    return (
        isinstance(operation, ops.Admit)
        and isinstance(answer, Refused)
        and answer.reason == "no_space"
        and bool(found.state.layout.states)
        and before.holders == after.holders
        and before.usage.held == after.usage.held
        and before.usage.cached - after.usage.cached == after.usage.free - before.usage.free
        and max(rows, default=0) == 1
        and found.state.forecast(operation.request).expected > 0
    )


def chunks_make_room_for_states(found: Failed) -> bool:
    """A prompt makes room for three slots of states, of which its request has one or all.

    It has all after its first chunk, and one after a hit, which took it for the copy.
    """
    operation, answer = found.state.history[-1]
    if not isinstance(answer, Scheduled) or not found.state.layout.states:
        return False
    copied = isinstance(operation, ops.Admit) and answer.hit > 0
    return isinstance(operation, ops.Extend) or (copied and found.fact("dropped", int) == 1)


def unstored_chunks_begin_again(found: Failed) -> bool:
    """A chunk of a request that may not store does not count as done."""
    live, answer = found.fact("live", RequestState), found.fact("answer", Scheduled)
    return not live.request.store and answer.start < live.computed


def empty_node_is_evicted(found: Failed) -> bool:
    """With states, a prompt of whole pages that comes twice leaves an empty node."""
    return bool(found.config.get("groups")) and "AssertionError" in found.violation.sentence


def media_are_hashed_without_their_shape(found: Failed) -> bool:
    """Both items have the same numbers in the same order, and only these are hashed."""
    one, other = (_numbers(found.fact(name, dict)) for name in ("one", "other"))
    return one == other


def _numbers(item: Mapping[str, Any]) -> list[int]:
    """All numbers of the item's parts, one part after the other; their type is one."""
    return [
        first + step * at for _, shape, first, step in item["parts"] for at in range(prod(shape))
    ]


_STANDS = re.compile(r"after \d+ more steps, 80 of them without progress, ")


def own_window_blocks_its_request(found: Failed) -> bool:
    """Nothing moves, no request is lost, and whatever is locked of a small window pool is its own.

    The pool is smaller than a chunk, a page and the windows of two nodes.
    """
    engine, left = found.config["engine"], found.violation.sentence
    statuses = dict(re.findall(r"'(\w+)': '(\w+)'", left))
    running = {name for name, status in statuses.items() if status == "running"}
    windows = any(each.get("kind") == "window" for each in engine["groups"])
    if not windows or not _STANDS.match(left) or not engine.get("caching", True):
        return False
    holders = found.fact("holders", list)
    if len(holders) not in (1, 3):  # sessions have two entries before it
        return False
    name, locked, _, free = holders[-1]
    lost = {*found.fact("requests", list)} - statuses.keys()
    pool, least = _window_pages(engine)
    own = 0 <= pool - locked - free <= 1  # its last page may not be in the tree yet
    return not lost and running <= {name} and own and pool <= least


def _window_pages(engine: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pages of the window pool, and the most with which a request may block itself."""
    page, settings = engine.get("block_size", 16), engine.get("settings", {})
    full = (engine.get("blocks", 40) - 1 + max(2, -(-6 // page))) * page
    pool = int(full * settings.get("swa_full_tokens_ratio", 0.8)) // page
    window = max(each["size"] for each in engine["groups"] if each.get("kind") == "window")
    chunk = min(engine.get("token_budget", 64), engine.get("max_length", 256))
    return pool, 2 * -(-(window - 1) // page) + -(-chunk // page) + 1


def a_second_chunk_ends_the_first(found: Failed) -> bool:
    """Without a tree a request answers after a part of its prompt; another one ignores the end."""
    name = found.violation.sentence.partition(" ")[0]
    submitted = {a["id"]: a for verb, a in found.calls if verb == "submit"}
    others = [a for other, a in submitted.items() if other != name and "stop" not in a]
    return (
        not found.config["engine"].get("caching", True)
        and "stop" in submitted.get(name, {})
        and bool(others)
        and " from its 1th token on" in found.violation.sentence
        and found.fact("computed", int) < found.fact("prompt", int)
    )
