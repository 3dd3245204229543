"""Known failures of vLLM's engine loop; the pages of the findings have the causes."""

from __future__ import annotations

import re

from kvproof.suites.mechanisms.failed import Failed

_RESETS = re.compile(
    r"the engine raised AssertionError: .* in "
    r"\S*kv_connector/v1/offloading/scheduler\.py:_?reset_cache"
)


def cleared_event_names_no_tier(found: Failed) -> bool:
    """After a reset, the connector's own "cleared" comes behind what the GPU has stored."""
    resets = any(verb == "reset" for verb, _ in found.calls)
    return resets and bool(found.violation.facts.get("without_other_clears"))


def second_reset_asserts(found: Failed) -> bool:
    """A reset follows another one with no step between them."""
    before = [verb for verb, _ in found.calls[:-1]]
    twice = found.verb == "reset" and "reset" in before
    return twice and bool(_RESETS.match(found.violation.sentence))


_LOST = re.compile(
    r".* reads position \d+ .*: (the block's load had failed|"
    r"it was computed from a block whose load had failed);"
)


def _loses(found: Failed, *connectors: str) -> bool:
    """Whether loads failed in the history, with one of these connectors."""
    lost = any(keywords.get("lose") for _, keywords in found.calls)
    return lost and found.config["engine"].get("connector") in connectors


def failed_load_stays_cached(found: Failed) -> bool:
    """Blocks that did not arrive are hit by others until their request has computed them again."""
    served = bool(_LOST.match(found.violation.sentence))
    return served and _loses(found, "failing_sync_recompute")


def answer_of_a_failed_load_is_taken(found: Failed) -> bool:
    """The step behind one whose load failed was scheduled already, and its answer is kept."""
    own = bool(found.violation.facts.get("load_failed"))
    asynchronous = bool(found.config["engine"].get("asynchronous"))
    return own and asynchronous and _loses(found, "failing_sync_recompute")


_STUCK = re.compile(r".*, \{((?:'\w+': 'running'(?:, )?)+)\} has not ended")


def failed_load_runs_for_ever(found: Failed) -> bool:
    """Requests with one answer run on: its placeholder stayed when a failed load dropped it."""
    left = _STUCK.match(found.violation.sentence)
    asked = {k.get("id"): k.get("answers") for verb, k in found.calls if verb == "submit"}
    single = left is not None and all(asked.get(r) == 1 for r in re.findall(r"'(\w+)':", left[1]))
    asynchronous = bool(found.config["engine"].get("asynchronous"))
    return single and asynchronous and _loses(found, "failing_sync_recompute")


def idle_engine_stores_for_ever(found: Failed) -> bool:
    """No request is left; the lazy tier is smaller than the pool, and each store evicts another."""
    rests = found.verb == "drain" and "the engine has not ended" in found.violation.sentence
    return rests and found.config["engine"].get("connector") == "simple_lazy"


def blocks_are_read_after_their_lease(found: Failed) -> bool:
    """The engine that prefilled had given the blocks up, and the other one read them anyway."""
    return bool(found.violation.facts.get("read_after_its_lease"))


def pushed_blocks_never_come(found: Failed) -> bool:
    """A request waits for blocks that the other engine will not write any more."""
    pushes = str(found.config["engine"].get("connector")).startswith("nixl_push")
    waits = re.search(r"waiting_for_remote_kvs|finished_aborted", found.violation.sentence)
    return pushes and bool(waits) and bool(found.violation.facts.get("broken"))


def aborted_push_is_remembered(found: Failed) -> bool:
    """The push connector keeps requests that end without a load: aborted early, or not wanted."""
    left = re.search(r"(\d+) of (\d+) blocks .* and \{(.*)\} is left", found.violation.sentence)
    pushes = str(found.config["engine"].get("connector")).startswith("nixl_push")
    unloaded = any(
        verb == "abort" or keywords.get("reads_cache") is False for verb, keywords in found.calls
    )
    only = left and re.fullmatch(r"'recving metadata of the connector': \d+", left[3])
    return pushes and unloaded and bool(only) and left is not None and left[1] == left[2]


def unequal_blocks_shift_a_hit(found: Failed) -> bool:
    """Two engines have unequal block sizes, and what was read is off by some blocks."""
    engine = found.config["engine"]
    peer = engine.get("peer") or engine
    other = re.search(r": (the block came from another engine; )?it holds position \d+ of ",
                      found.violation.sentence)  # fmt: skip
    return engine["block_size"] != peer["block_size"] and bool(other)


_UNDIVIDED = re.compile(
    r"the engine raised AssertionError: Local block size (\d+) is not divisible by remote block "
    r"size (\d+) or vice versa. in \S*:block_size_ratio"
)


def push_into_smaller_blocks_ends_the_engine(found: Failed) -> bool:
    """The engine that decodes has smaller blocks than the one that writes into them."""
    raised = _UNDIVIDED.match(found.violation.sentence)
    pushes = str(found.config["engine"].get("connector")).startswith("nixl_push")
    return pushes and raised is not None and int(raised[1]) < int(raised[2])


_NULL_READ = re.compile(r"\w+ reads position (\d+) of (\d+) in block 0 of group (\d+) ")


def window_of_a_loaded_prompt_is_one_short(found: Failed) -> bool:
    """The last token of a prompt that was loaded whole reads the token before its blocks."""
    engine, read = found.config["engine"], _NULL_READ.match(found.violation.sentence)
    if read is None or not str(engine.get("connector")).startswith("nixl_"):
        return False
    position, end, group = map(int, read.groups())
    window = engine.get("groups", ({}, {}))[group].get("size", 0)
    return bool(position == end - window and (position + 1) % engine["block_size"] == 0)
