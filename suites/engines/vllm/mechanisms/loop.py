"""Known failures of vLLM's engine loop; the pages of the findings have the causes."""

from __future__ import annotations

import re
from typing import Any

from kvproof.harness.whole_engine.causes import FROM_LOST, LOST_BLOCK
from kvproof.suites.framework.failed import Failed

_RESETS = re.compile(
    r"the engine raised AssertionError: .* in "
    r"\S*kv_connector/v1/offloading/scheduler\.py:_?reset_cache"
)


def cleared_event_names_no_tier(found: Failed) -> bool:
    """After a reset, the connector's own "cleared" comes later than the GPU's "stored"."""
    clears = found.config["engine"].get("connector") in ("simple", "simple_lazy", "multi")
    resets = any(verb == "reset" for verb, _ in found.calls)
    return clears and resets and bool(found.violation.facts.get("without_other_clears"))


def second_reset_asserts(found: Failed) -> bool:
    """A reset follows another one with no step between them."""
    twice = found.verb == "reset" and found.fact("reset_again", bool)
    return twice and bool(_RESETS.match(found.violation.sentence))


_LOST = re.compile(
    rf"(\w+) reads position \d+ of \d+ in block (\d+) .*: ({LOST_BLOCK}|{FROM_LOST});"
)


def _recomputes(found: Failed) -> bool:
    """Whether failed loads are computed anew: by the connector's name, or by a user's options."""
    engine = found.config["engine"]
    policy = engine.get("tier", {}).get("kv_load_failure_policy")
    return str(engine.get("connector")).endswith("_recompute") or policy == "recompute"


def _lost_in_a_step(found: Failed) -> bool:
    """Whether a launch came right after a load that failed, which is computed anew."""
    return bool(found.violation.facts.get("lost_in_a_step")) and _recomputes(found)


def failed_load_stays_cached(found: Failed) -> bool:
    """Blocks that did not arrive are hit by others until their request has computed them again.

    The request itself has to compute them, unless it was admitted anew.
    """
    served = _LOST.match(found.violation.sentence)
    own = found.violation.facts.get("behind_a_failed_load")
    if served is None or not isinstance(own, dict):
        return False
    lost = served[3] == LOST_BLOCK and int(served[2]) in own.get(served[1], ())
    return not lost and _lost_in_a_step(found)


def answer_of_a_failed_load_is_taken(found: Failed) -> bool:
    """The step after one whose load failed was scheduled already, and its answer is kept."""
    own = bool(found.violation.facts.get("load_failed"))
    asynchronous = bool(found.config["engine"].get("asynchronous"))
    return own and asynchronous and _recomputes(found)


_STUCK = re.compile(r".*, \{((?:'\w+': 'running'(?:, )?)+)\} has not ended")


def failed_load_runs_for_ever(found: Failed) -> bool:
    """Requests with one answer run on: its placeholder stayed when a failed load dropped it."""
    left = _STUCK.match(found.violation.sentence)
    asked = {k.get("id"): k.get("answers") for verb, k in found.calls if verb == "submit"}
    single = left is not None and all(asked.get(r) == 1 for r in re.findall(r"'(\w+)':", left[1]))
    asynchronous = bool(found.config["engine"].get("asynchronous"))
    return single and asynchronous and _lost_in_a_step(found)


_BACK = re.compile(
    r"the scheduler lets \w+ go on at token (\d+), the device's own count is (\d+), and \d+ drafts"
)


def rewound_request_runs_on(found: Failed) -> bool:
    """After a failed load of the request the scheduler goes back, model runner V2 does not."""
    counts, own = _BACK.match(found.violation.sentence), found.violation.facts.get("load_failed")
    second = found.config["engine"].get("runner") == "v2"
    back = counts is not None and int(counts[1]) < int(counts[2])
    return bool(own) and second and back and _recomputes(found)


_BLOCK = re.compile(r"\w+ reads position (\d+) of \d+ in block (\d+) of group (\d+) ")


def preempted_in_its_own_step_stays_cached(found: Failed) -> bool:
    """The block was cached for a step that was taken back: its request was preempted in it.

    It is read at its place in that request's table, and nothing has written it since.
    """
    read = _BLOCK.match(found.violation.sentence)
    if read is None or found.config["engine"].get("policy") != "priority":
        return False
    position, block, group = map(int, read.groups())
    place, writer = position // found.config["engine"]["block_size"], found.fact("written_by", int)
    return any(
        [group, block, place] == own and writer <= launches
        for *own, launches in found.fact("uncomputed_blocks", list)
    )


_STATE = re.compile(r"(\w+) goes on from the state of (\d+) tokens .*: it is one of (\d+) tokens")


def left_out_request_loses_its_state(found: Failed) -> bool:
    """A step had left the request out, and its count of accepted drafts was lost."""
    state = _STATE.match(found.violation.sentence)
    lost = found.fact("forgotten_drafts", dict)
    return state is not None and int(state[2]) - int(state[3]) == lost.get(state[1])


def row_takes_the_count_of_another(found: Failed) -> bool:
    """A row that moved up has the accepted drafts of the request that was there before."""
    state = _STATE.match(found.violation.sentence)
    taken = found.fact("drafts_of_another_row", dict)
    asynchronous = bool(found.config["engine"].get("asynchronous"))
    return asynchronous and state is not None and taken.get(state[1], 0) < 0


_COLUMNS = re.compile(
    r"\w+ keeps states in blocks \[([\d, ]+)\] of group \d+, at places \[[\d, ]+\] of its table, "
    r"the manager holds \[([\d, ]+)\] there"
)


def scratch_block_is_in_two_columns(found: Failed) -> bool:
    """The manager has moved a block to the end of the table, the worker has it at both places.

    A step has more tokens than a block, and drafts that the manager took for accepted. Without
    asynchronous scheduling the state at the border is copied into the old place.
    """
    engine, columns = found.config["engine"], _COLUMNS.match(found.violation.sentence)
    if (engine.get("drafts") or {}).get("count", 0) < engine["block_size"]:
        return False
    if state := _STATE.match(found.violation.sentence):
        return int(state[3]) in found.fact("states_in_two_columns", dict).get(state[1], ())
    if columns is None or not engine.get("asynchronous"):
        return False
    table, held = ([int(each) for each in part.split(", ")] for part in columns.groups())
    moved = [block for block, own in zip(table, held, strict=True) if block != own]
    return all(block in held for block in moved) and held.count(0) == len(moved)


def idle_engine_stores_for_ever(found: Failed) -> bool:
    """No request is left; the lazy tier has no room for all cached blocks, so each store evicts.

    Since the last launch more blocks were stored than it holds, and some of them again.
    """
    rests = found.verb == "drain" and "the engine has not ended" in found.violation.sentence
    if not rests or found.config["engine"].get("connector") != "simple_lazy":
        return False
    times = found.fact("stored_since_a_launch", list)
    return len(times) > found.fact("tier_blocks", int) and max(times) > 1


_NAMED = (
    re.compile(r"(?P<blocks>\[.*\]) of (?P<name>\w+) are read by the other engine"),
    re.compile(r"(?P<name>\w+) reads position \d+ of \d+ in block (?P<blocks>\d+) of group"),
)
_KEPT = re.compile(r"(\d+) of \1 blocks can be handed out and \{(.*)\} is left")
_COUNTED = "'consumer notification counts by req of the connector'"
_RECEIVED = "'recving metadata of the connector'"


def _facts(found: Failed, name: str) -> dict[str, Any]:
    """Return a fact that maps requests or blocks; empty where it is missing."""
    known = found.violation.facts.get(name)
    return known if isinstance(known, dict) else {}


def blocks_are_read_after_their_lease(found: Failed) -> bool:
    """The engine that prefilled had given the blocks up, and the other one read them anyway.

    The block of the sentence is one that was loaded last by such a read.
    """
    read, late = _BLOCK.match(found.violation.sentence), _facts(found, "read_after_its_lease")
    return read is not None and _facts(found, "loaded_by").get(read[2]) in late


def _left(found: Failed) -> set[str]:
    """Return which tables are not empty at rest, all blocks being free; empty otherwise."""
    kept = _KEPT.match(found.violation.sentence)
    return set(re.findall(r"'[^']+'", kept[2])) if kept else set()


def _pushes(found: Failed) -> bool:
    return str(found.config["engine"].get("connector")).startswith("nixl_push")


def _unloaded(found: Failed) -> bool:
    """Return whether requests may have ended without a load: aborted early, or none was wanted.

    Of a prompt of embeddings Nixl's scheduler asks for no token.
    """
    struck = found.violation.facts.get("struck")  # aborted after another known failure
    return bool(struck) or any(
        verb == "abort" or keywords.get("reads_cache") is False or keywords.get("embeds")
        for verb, keywords in found.calls
    )


def repeated_message_counts_for_another_worker(found: Failed) -> bool:
    """Of several workers whose messages are counted, one's came twice, for this request.

    The failure is of that request, of a block that it was loaded into, or of the count.
    """
    engine = found.config["engine"]
    workers = [each.get("tensor_parallel", 1) for each in (engine, engine.get("peer") or engine)]
    several = workers[0] < workers[1] if _pushes(found) else workers[0] > workers[1]
    repeated, loads = _facts(found, "repeated"), _facts(found, "loaded_by")
    if not repeated or not several:
        return False
    if left := _left(found):
        return _COUNTED in left <= {_COUNTED, *([_RECEIVED] if _unloaded(found) else [])}
    named = next(filter(None, (each.search(found.violation.sentence) for each in _NAMED)), None)
    if named is None:
        return False
    blocks = re.findall(r"\d+", named["blocks"])
    return not repeated.keys().isdisjoint({named.groupdict().get("name"), *map(loads.get, blocks)})


_UNWRITTEN = {"waiting_for_remote_kvs", "finished_aborted"}
_BEHIND = {"waiting", "preempted"}
_STARVED = re.compile(r"after 3000 more steps, 0 of them without progress")
"""The last of those that wait for room is computed, preempted, and computed again."""


def pushed_blocks_never_come(found: Failed) -> bool:
    """Requests wait for blocks that will not be written: something of each has gone wrong.

    The message after a complete write has come for none of them. Later ones may wait for room,
    or run again and again until they are preempted for want of it.
    """
    left = dict(re.findall(r"'(\w+)': '(\w+)'", found.violation.sentence))
    waiting = {name for name, status in left.items() if status in _UNWRITTEN}
    others = {left[name] for name in left.keys() - waiting}
    behind = _BEHIND | ({"running"} if _STARVED.match(found.violation.sentence) else set())
    gone = _facts(found, "broken").keys() - _facts(found, "arrived").keys()
    return _pushes(found) and bool(waiting) and waiting <= gone and others <= behind


_STILL = re.compile(r"after \d+ more steps, 80 of them without progress, \{")


def failed_load_hides_those_behind(found: Failed) -> bool:
    """The first of those that hold blocks holds none: its load failed, and it waits for room.

    After it come loads that have ended and hold the room. Nothing runs.
    """
    holders = found.fact("holders", list)
    if not holders or not _recomputes(found) or not _STILL.match(found.violation.sentence):
        return False
    left = dict(re.findall(r"'(\w+)': '(\w+)'", found.violation.sentence))
    first, blocks, *_ = holders[0]
    lost = {*_facts(found, "broken"), *found.fact("failed", list)}
    failed = first in lost and left.get(first) in _BEHIND
    hidden = [each for each in holders if left.get(each[0]) == "waiting_for_remote_kvs"]
    others = {left[name] for name in left.keys() - {name for name, *_ in hidden}}
    ended = bool(hidden) and all(held and loaded for _, held, loaded, _ in hidden)
    return failed and not blocks and ended and others <= _BEHIND


def failed_load_waits_for_itself(found: Failed) -> bool:
    """All blocks are free, and those reserved for the first request that waits keep it out.

    Its load failed; it is still reserved for, and asks for another load.
    """
    holders = found.fact("holders", list)
    if not holders or not _STILL.match(found.violation.sentence):
        return False
    left = dict(re.findall(r"'(\w+)': '(\w+)'", found.violation.sentence))
    first, *_, reserved = holders[0]
    held = sum(blocks for _, blocks, *_ in holders)
    tier = not str(found.config["engine"].get("connector")).startswith("nixl_")
    asks_again = tier and _recomputes(found) and first in found.fact("failed", list)
    return asks_again and reserved > 0 and not held and {*left.values()} <= _BEHIND


_GIVEN_UP = (
    re.compile(r"the engine raised KeyError: (\d+) in \S*offloading/scheduler\.py:_remove_pending"),
    re.compile(r"blocks \[([\d, ]+)\] were written by a launch while transfer .* still read them"),
)


def reset_stores_blocks_given_up(found: Failed) -> bool:
    """After a reset that a request outlived, its store took blocks that it had given up.

    The block that is read was loaded from such a store, and nothing has written it since; or the
    blocks of the sentence are those of such stores.
    """
    if not any(verb in ("reset", "sleep") for verb, _ in found.calls):
        return False
    stored = found.fact("stored_when_given_up", list)
    named = next(filter(None, (each.match(found.violation.sentence) for each in _GIVEN_UP)), None)
    if named is not None:
        return {*map(int, named[1].split(", "))} <= {*stored}
    loaded, block = found.fact("loaded_from_given_up", dict), found.violation.facts.get("block")
    return str(block) in loaded and loaded[str(block)] == found.fact("written_by", int)


def aborted_push_is_remembered(found: Failed) -> bool:
    """The push connector keeps requests that end without a load: aborted early, or not wanted."""
    return _pushes(found) and _unloaded(found) and _left(found) == {_RECEIVED}


_SHIFTED = re.compile(
    r"\w+ reads position (\d+) of \d+ in block (\d+) .*: "
    r"(?:the block came from another engine; )?it holds position (\d+) of "
)


def unequal_blocks_shift_a_hit(found: Failed) -> bool:
    """The peer's blocks are smaller, and the content read is earlier, off by some of them.

    The block was loaded after a hit, and that prompt's last block lacks as many of the peer's.
    """
    engine = found.config["engine"]
    own, other = engine["block_size"], (engine.get("peer") or engine)["block_size"]
    read = _SHIFTED.match(found.violation.sentence)
    loads = _facts(found, "loaded_for")
    if read is None or read[2] not in loads:
        return False
    prompt, blocks = loads[read[2]]
    lacking = -prompt % own // other * other
    return bool(0 < int(read[1]) - int(read[3]) == lacking and blocks < -(-prompt // own))


_UNDIVIDED = re.compile(
    r"the engine raised AssertionError: Local block size (\d+) is not divisible by remote block "
    r"size (\d+) or vice versa. in \S*:block_size_ratio"
)


def push_into_smaller_blocks_ends_the_engine(found: Failed) -> bool:
    """The engine that decodes has smaller blocks than the one that writes into them."""
    raised = _UNDIVIDED.match(found.violation.sentence)
    return _pushes(found) and raised is not None and int(raised[1]) < int(raised[2])


_NULL_READ = re.compile(
    r"\w+ reads position (\d+) of (\d+) in block 0 of group \d+ \(model\.layers\.(\d+)\."
)


def window_of_a_loaded_prompt_is_one_short(found: Failed) -> bool:
    """The last token of a prompt that was loaded whole reads the token before its blocks.

    It may be padded with drafts, which come after it.
    """
    engine, read = found.config["engine"], _NULL_READ.match(found.violation.sentence)
    if read is None or not str(engine.get("connector")).startswith("nixl_"):
        return False
    position, end, layer = map(int, read.groups())
    windows = [
        group.get("size", 0) for group in engine["groups"] for _ in range(group.get("layers", 1))
    ]  # of each layer: engines divide groups
    drafts = (engine.get("drafts") or {}).get("count", 0)
    padded = position in (end - windows[layer], end - windows[layer] - drafts)
    return bool(windows[layer] and padded and (position + 1) % engine["block_size"] == 0)


_TWICE = re.compile(
    r"the engine raised (?:KeyError: \d+ in \S*offloading/scheduler\.py:_update_connector_output|"
    r"AssertionError: .*in \S*core/sched/scheduler\.py:_update_from_kv_xfer_finished)"
)


def completion_reported_twice_raises(found: Failed) -> bool:
    """The scheduler has no entry any more for a copy whose end it was given before."""
    repeats = any(keywords.get("twice") for _, keywords in found.calls)
    return repeats and bool(_TWICE.match(found.violation.sentence))


_PADDED = re.compile(
    r"the engine raised AssertionError: assert num_new_tokens == 1 \+ self\.num_spec_tokens in "
    r"\S*core/sched/scheduler\.py:schedule"
)


def threshold_below_the_drafts_ends_the_engine(found: Failed) -> bool:
    """A request with one token left is padded for drafts, then cut to a threshold below them."""
    engine = found.config["engine"]
    return bool(_PADDED.match(found.violation.sentence)) and any(
        0 < _threshold(each) <= (each.get("drafts") or {}).get("count", 0)
        for each in (engine, engine.get("peer") or engine)
    )


def _threshold(engine: dict[str, Any]) -> int:
    return int(engine.get("settings", {}).get("long_prefill_token_threshold", 0))


_STANDS = re.compile(r"after \d+ more steps, 80 of them without progress, ")


def image_above_the_threshold_waits_for_ever(found: Failed) -> bool:
    """Each request that runs has an image of more tokens than the threshold, and nothing moves.

    Images are not to be cut. Two requests at least: a single one is not held to the threshold. If
    none is left here, it is so at the engine that prefills.
    """
    engine = found.config["engine"]
    left = dict(re.findall(r"'(\w+)': '(\w+)'", found.violation.sentence))
    where, held = (engine, left) if left else (engine.get("peer", {}), _facts(found, "elsewhere"))
    running = {name for name, status in held.items() if status == "running"}
    stands = bool(_STANDS.match(found.violation.sentence)) and len(held) > 1 and bool(running)
    return stands and running <= _above_the_threshold(found, where)


def _above_the_threshold(found: Failed, engine: dict[str, Any]) -> set[str]:
    """Return requests with an image that an engine may not cut and never schedules whole."""
    most = _threshold(engine)
    if not most or not engine.get("settings", {}).get("disable_chunked_mm_input"):
        return set()
    method = (engine.get("drafts") or {}).get("method", "ngram")
    ahead = int(method != "ngram")  # a draft model reads one token further
    return {
        keywords["id"]
        for verb, keywords in found.calls
        if verb == "submit"
        and any(length + ahead > most for _, length, _ in keywords.get("media", ()))
    }


def event_has_tokens_of_other_blocks(found: Failed) -> bool:
    """Of a group that keeps some blocks alone, the tokens of those between come with them."""
    masked = found.violation.facts.get("kind") in ("window", "chunk", "state")
    return masked and found.fact("beyond", int) > 0


def part_is_published_behind_no_key(found: Failed) -> bool:
    """A part of a block names the part before it as its parent, which is no entry of the index.

    Parts are as long as the unit of matches, or as a window's smaller blocks.
    """
    engine, tokens = found.config["engine"], found.fact("tokens", int)
    size, unit = engine["block_size"], engine.get("settings", {}).get("prefix_match_unit", 0)
    units = {unit, *(size // each.get("parts", 1) for each in engine.get("groups", ()))}
    return bool(found.violation.facts.get("orphan")) and tokens in units - {size}
