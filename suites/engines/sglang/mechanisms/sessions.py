"""Known failures of SGLang's streaming sessions; the pages of the findings have the causes."""

from __future__ import annotations

import re

from kvproof.suites.framework.failed import Failed

_STAND_IN = re.compile(
    r".*\b_VirtualNode\b.* in sglang/srt/mem_cache/\S*:(node_by_id|dfs_weight_order)$"
)
_NO_ROW = re.compile(
    r".*alloc_req_slots runs out of memory.*available_size\(\)=(\d+), num_reqs=(\d+), .*"
    r":alloc_req_slots$"
)
_HELD = re.compile(
    r"(\d+) of (\d+) blocks can be handed out, with no request: open sessions have .*, "
    r"(\d+) blocks at most"
)
_BEGINS = re.compile(
    r"(\w+) begins at (\d+): its session holds at least \d+ tokens of it, and no more"
)
_STANDS = re.compile(r"after \d+ more steps, 80 of them without progress, ")


def weights_meet_a_sessions_stand_in(found: Failed) -> bool:
    """The queue is sorted by weights while a turn on its session's record is in it.

    That is a second turn, or a first one that was retracted or preempted.
    """
    engine, turns = found.config["engine"], _turns(found)
    settings = engine.get("settings", {})
    again = settings.get("SGLANG_TEST_RETRACT") or engine.get("policy") == "priority"
    on_record = any(count > 1 or again for count in turns.values())
    if settings.get("schedule_policy") != "dfs-weight" or not on_record:
        return False
    return bool(_STAND_IN.match(found.violation.sentence))


def preempted_turns_keep_their_rows(found: Failed) -> bool:
    """Priorities preempt a turn for its row, which stays with its session."""
    rows, engine = _NO_ROW.match(found.violation.sentence), found.config["engine"]
    if not rows or engine.get("policy") != "priority" or not _turns(found):
        return False
    free, asked = map(int, rows.groups())
    return free < asked


def sessions_keep_others_out(found: Failed) -> bool:
    """The first in the queue would fit, but for the pages or rows of sessions without a turn."""
    left, engine = found.violation.sentence, found.config["engine"]
    statuses = dict(re.findall(r"'(\w+)': '(\w+)'", left))
    holders, needs = found.fact("holders", list), found.fact("needs", dict)
    if not _STANDS.match(left) or not _turns(found) or len(holders) < 2:
        return False
    (name, held, _, able), (_, taken, _, rows) = holders[:2]
    pages = -(-needs[name] // engine.get("block_size", 16)) + 2  # SGLang keeps more than one free
    idle = statuses.keys() == needs.keys() and "running" not in statuses.values()
    return idle and (able < pages <= able + held or rows == 0 < taken)


def aborted_turns_keep_closed_sessions(found: Failed) -> bool:
    """Turns were aborted while preempted; of their sessions' pages, and no more, some are held.

    Or the next turn of such a session goes on from the tokens of that turn.
    """
    aborted = found.fact("aborted_turns", dict)
    if again := _BEGINS.match(found.violation.sentence):
        name, began = again[1], int(again[2])
        session = _session(found, name)
        turns = [held for turn, held in aborted.items() if _session(found, turn) == session]
        return bool(session) and began <= sum(turns) * found.config["engine"].get("block_size", 16)
    blocks = _HELD.match(found.violation.sentence)
    if blocks is None:
        return False
    free, total, most = map(int, blocks.groups())
    return total - free - most <= sum(aborted.values())


def _session(found: Failed, name: str) -> str | None:
    """Return the session of a request."""
    given = (each for verb, each in found.calls if verb == "submit" and each["id"] == name)
    return next((each.get("session") for each in given), None)


def _turns(found: Failed) -> dict[str, int]:
    """Return session -> turns."""
    names = [arguments.get("session") for verb, arguments in found.calls if verb == "submit"]
    return {name: names.count(name) for name in names if name}
