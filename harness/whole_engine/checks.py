"""Checks of a row when it is submitted: whose blocks it names, and where its slots lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof.harness.contract.whole_engine import Reads, Row
from kvproof.harness.whole_engine.device_requests import DeviceRequest
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import Pool

OWNED = "kernel_tables_address_their_blocks"
SLOTS = "slot_mappings_follow_the_tables"
AGREE = "device_and_scheduler_agree_on_computed_tokens"
NAMED = "a_row_has_its_requests_adapter_and_media"


def check_submission(
    row: Row, request: DeviceRequest, pools: Sequence[Pool], findings: Findings, *, launch: int
) -> None:
    """Check everything that the host can know: tables, slots, adapter and media."""
    own = request.request
    named = (row.adapter, row.media) == ((own.adapter, own.adapter_version), own.media)
    findings.check(
        NAMED, named, lambda: f"{row.request} runs with {row.adapter} and {row.media}, not its own"
    )
    for group, (pool, reads) in enumerate(zip(pools, row.groups)):  # noqa: B905 - Python 3.10
        _check_table(row, group, pool, reads, findings, launch)
        if len(reads.writes) and pool.visibility.by_position:
            _check_slots(row, group, pool, reads, findings)


def check_belief(believed: Row, row: Row, request: DeviceRequest, findings: Findings) -> None:
    """Check a row that the device has made against the host's: it may not know of some drafts."""
    most = 0 if row.fresh else request.unreported
    findings.check(
        AGREE,
        0 <= believed.start - row.start <= most,
        lambda: (
            f"the scheduler lets {row.request} go on at token {believed.start}, the device's own "
            f"count is {row.start}, and {most} drafts are not reported"
        ),
        facts={"load_failed": request.load_failed},
    )


def _check_table(
    row: Row, group: int, pool: Pool, reads: Reads, findings: Findings, launch: int
) -> None:
    """Compare the kernel's table with the manager's blocks, where the row reads and writes."""
    ratio = pool.block_size // pool.kernel_block_size
    end = row.start + len(row.tokens)
    first = pool.visibility.first_block(row.start, pool.block_size)
    last = row.start // pool.block_size if row.of_tree else -(-end // pool.block_size)
    if reads.use is not None:
        _check_places(row, group, reads, findings)
        return
    if reads.states:
        _check_states(row, group, reads, findings)
        return
    if len(reads.owned) < last or len(reads.table) < last * ratio:
        findings.check(
            OWNED,
            False,  # noqa: FBT003 - the condition of a check
            lambda: (
                f"{row.request} computes up to position {end} in group {group}, and has "
                f"{min(len(reads.owned), len(reads.table) // ratio)} blocks of {pool.block_size}"
            ),
        )
        return
    owned = np.asarray(reads.owned[first:last], np.int64)
    expected = (owned[:, None] * ratio + np.arange(ratio)).ravel()
    found = reads.table[first * ratio : last * ratio]
    findings.check(
        OWNED,
        np.array_equal(found, expected),
        lambda: (
            f"{row.request} reads and writes blocks {_ids(found, ratio)} in group {group}, "
            f"the manager holds {owned.tolist()} there"
        ),
        slots=lambda: [
            {
                "launch": launch,
                "request": row.request,
                "group": group,
                "layer": "table",
                "block": block,
                "first": (first + place) * pool.block_size,
                "last": (first + place + 1) * pool.block_size - 1,
                "wrong": pool.block_size * int(block != own),
                "found": "" if block == own else f"the manager holds block {own} there",
            }
            for place, (block, own) in enumerate(zip(_ids(found, ratio), owned.tolist()))  # noqa: B905 - Python 3.10
        ],
    )


def _check_states(row: Row, group: int, reads: Reads, findings: Findings) -> None:
    """Compare the blocks of the states that a row reads and writes; others may be gone."""
    places = sorted({*reads.states, *([reads.state] if row.start else [])})
    found = [int(reads.table[place]) for place in places]
    owned = [reads.owned[place] if place < len(reads.owned) else 0 for place in places]
    findings.check(
        OWNED,
        found == owned,
        lambda: (
            f"{row.request} keeps states in blocks {found} of group {group}, at places {places} "
            f"of its table, the manager holds {owned} there"
        ),
    )


def _check_places(row: Row, group: int, reads: Reads, findings: Findings) -> None:
    """Compare the places of states in a pool of their own with those that the manager holds."""
    assert reads.use is not None, "the group has such a pool"
    places = {reads.use.read, *(each.place for each in reads.use.writes)}
    findings.check(
        OWNED,
        places <= {*reads.owned},
        lambda: (
            f"{row.request} keeps states in {sorted(places)} of group {group}, the manager holds "
            f"{[*reads.owned]} for it"
        ),
    )


def _ids(table: np.ndarray, ratio: int) -> list[int]:
    return [int(each) // ratio for each in table[::ratio]]


def _check_slots(row: Row, group: int, pool: Pool, reads: Reads, findings: Findings) -> None:
    positions = np.arange(row.start, row.start + len(row.tokens))
    size = pool.kernel_block_size
    if positions[-1] // size >= len(reads.table):
        return
    expected = reads.table[positions // size] * size + positions % size
    findings.check(
        SLOTS,
        np.array_equal(reads.writes, expected),
        lambda: (
            f"{row.request} writes positions {row.start}..{positions[-1]} of group {group} to "
            f"slots {reads.writes.tolist()[:6]}, its table says {expected.tolist()[:6]}"
        ),
    )
