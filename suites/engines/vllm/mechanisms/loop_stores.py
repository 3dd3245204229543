"""Known failures of connectors that copy by themselves; the findings' pages have the causes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kvproof.suites.framework.failed import Failed


def _behind(found: Failed, *connectors: str) -> bool:
    return found.config["engine"].get("connector") in connectors


def _submitted(found: Failed) -> Iterator[Any]:
    return (keywords for verb, keywords in found.calls if verb == "submit")


def _prompts(found: Failed) -> Iterator[int]:
    """Return the lengths of prompts that are no later turns."""
    whole = (each for each in _submitted(found) if "after" not in each)
    return (each.get("shared", 0) + each.get("own", 0) for each in whole)


_FILE = re.compile(r"the engine raised FileNotFoundError: .* in safetensors/torch\.py:load_file")
_COPY = re.compile(
    r"the engine raised IllegalAccess: a copy of \[(\d+), .*\] into \[(\d+), .*\] in "
    r"\S*stores/files\.py:__setitem__"
)
_START = re.compile(r"the engine raised IllegalAccess: \w+ computes from position -\d+ on ")


def example_connector_loads_what_it_has_not_kept(found: Failed) -> bool:
    """A prompt with one token after a block, part of one, one of one token, or one that goes on.

    A reset preempts what runs; it is loaded under its prompt and its answers.
    """
    sentence, size = found.violation.sentence, found.config["engine"]["block_size"]
    copied = _COPY.match(sentence)
    longer = any(each % size == 1 for each in found.fact("prompts", list))
    goes_on = any(verb == "reset" and each.get("running") for verb, each in found.calls)
    missed = _FILE.match(sentence) and (longer or goes_on)
    parts = copied and int(copied[1]) < int(copied[2]) and int(copied[2]) % size == 0
    short = _START.match(sentence) and 1 in _prompts(found)
    return _behind(found, "example") and bool(missed or parts or short)


_READ = re.compile(r"\w+ reads position \d+ of \d+ in block (\d+) of group 0 ")


def store_serves_other_salts_and_weights(found: Failed) -> bool:
    """A store that names content by tokens and images has filled the block, and nothing since."""
    read = _READ.match(found.violation.sentence)
    filled = found.fact("filled_by_a_store", dict)
    return read is not None and found.fact("written_by", int) <= filled.get(read[1], -1)


_TABLES = re.compile(
    r"\w+ reads and writes blocks \[([\d, ]+)\] in group 0, the manager holds \[([\d, ]+)\] there"
)


def lmcache_table_grows_twice(found: Failed) -> bool:
    """After its first blocks the worker's table has those of each step twice."""
    tables = _TABLES.match(found.violation.sentence)
    if tables is None or not _behind(found, "lmcache"):
        return False
    table, held = ([int(each) for each in numbers.split(", ")] for numbers in tables.groups())
    places = range(1, len(table))
    return any(table[:at] == held[:at] and _twice(table[at:], held[at:]) for at in places)


def _twice(table: list[int], held: list[int]) -> bool:
    """Return whether a table is the held blocks with each group twice, up to its end."""
    if not table:
        return True
    for count in range(1, len(held) + 1):
        group = (held[:count] * 2)[: len(table)]
        if table[: len(group)] == group and _twice(table[len(group) :], held[count:]):
            return True
    return False


_UNREAD = re.compile(
    r"the engine raised AssertionError: Preempted request (\w+) has num_computed_tokens 0 but "
    r"expected \d+ .* in lmcache/\S*:build_connector_meta"
)


def lmcache_unread_hit_ends_the_engine(found: Failed) -> bool:
    """A request that may not read the cache goes on after a preemption."""
    raised = _UNREAD.match(found.violation.sentence)
    unread = {each["id"] for each in _submitted(found) if each.get("reads_cache") is False}
    return _behind(found, "lmcache") and raised is not None and raised[1] in unread
