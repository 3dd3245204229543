"""Layers with entries of several tokens: where an entry is written, and which ones are whole."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind, Reads, Row
from kvproof.harness.model.chain import Chain
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool

KIND = GroupKind(further_ratios=(4,))
PROMPT = tuple(range(10, 22))
TABLE = [1, 2, 3]
READS = "reads_return_own_content"


def words(entry: int) -> np.ndarray:
    return np.zeros((5, 4 // entry, 2), np.uint64)


def device() -> ShadowDevice:
    layers = [Layer("layer", words(1)), Layer("indexer", words(4), entry=4)]
    made = ShadowDevice(DeviceMemory([Pool(KIND, 4, 4, layers)], 5), Findings())
    made.register(EngineRequest("r", PROMPT, answers=4), Chain(PROMPT, [KIND]))
    return made


def row(start: int, stop: int, *, fresh: bool) -> Row:
    reads = Reads(np.array(TABLE), np.empty(0, np.int64), TABLE)
    return Row(
        request="r",
        start=start,
        tokens=PROMPT[start:stop],
        drafts=0,
        samples=False,
        fresh=fresh,
        device_start=False,
        adapter=("", 0),
        media=(),
        groups=(reads,),
    )


@pytest.mark.parametrize(("hit", "wrong"), [(4, ""), (8, ""), (5, READS), (7, READS)], ids=str)
def test_an_entry_is_whole_where_the_request_has_computed_all_its_tokens(
    hit: int, wrong: str
) -> None:
    made = device()
    for start, stop in ((0, 6), (6, 12)):
        made.launch([row(start, stop, fresh=not start)])
    assert made.findings.wrong is None
    made.launch([row(hit, 12, fresh=True)])
    found = made.findings.wrong
    assert (found.property if found else "") == wrong
    assert not found or "its first tokens were not computed again" in found.sentence


def test_an_entry_lies_in_the_slot_of_its_last_token() -> None:
    made = device()
    made.launch([row(0, 7, fresh=True)])
    layer, indexer = made.memory.pools[0].layers
    assert layer.words[2, 2].all()
    assert not layer.words[2, 3].any()
    assert indexer.words[1, 0].all()
    assert not indexer.words[2].any()
