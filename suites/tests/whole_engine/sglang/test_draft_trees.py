"""Trees of drafts: how they are drawn, and what a device makes of their paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvproof.harness.contract.whole_engine import EngineRequest, GroupKind, Reads, Row
from kvproof.harness.model.draft_trees import draw, paths
from kvproof.harness.whole_engine.attention import TOKENS
from kvproof.harness.whole_engine.causes import DRAFTS
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.harness.whole_engine.requests import chain_of

AHEAD = (11, 12, 13, 14, 15, 16)
PROMPT = (21, 22, 23)
KIND = GroupKind(layers=1)


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("right", [0, 2, 6])
def test_a_tree_has_the_right_tokens_up_to_a_number(*, chain: bool, right: int) -> None:
    for seed in range(20):
        tree = draw(AHEAD, right, nodes=5, chain=chain, seed=seed)
        most = min(right, 5)
        assert tree.has(AHEAD[:most])
        assert not tree.has(AHEAD[: most + 1])
        assert all(parent < node for node, parent in enumerate(tree.parents, 1))
        assert len({*zip(tree.parents, tree.tokens, strict=True)}) == 5
        assert not chain or tree.parents == (0, 1, 2, 3, 4)


def test_the_right_path_is_not_always_the_first_one() -> None:
    trees = [draw(AHEAD, 2, nodes=5, chain=False, seed=seed) for seed in range(20)]
    assert {tree.tokens[0] == AHEAD[0] for tree in trees} == {True, False}


def test_paths_lead_from_the_first_node_to_each_leaf() -> None:
    assert paths([-1, 0, 0, 1, 1]) == [[0, 2], [0, 1, 3], [0, 1, 4]]
    assert paths([-1]) == [[0]]


@pytest.fixture
def device() -> ShadowDevice:
    """A device on which a request has computed its prompt."""
    pool = Pool(KIND, 1, 1, [Layer("x", np.zeros((20, 1, 2), np.uint64))])
    found = ShadowDevice(DeviceMemory([pool], 20), Findings())
    request = EngineRequest("r1", PROMPT, accepts=(2,))
    found.register(request, chain_of(request, [KIND]))
    found.launch([row(found, 0, PROMPT, [1, 2, 3])])
    return found


def row(
    device: ShadowDevice, start: int, tokens: Sequence[int], slots: list[int], *, tree: bool = False
) -> Row:
    table = np.array([1, 2, 3, 4, 5, 6, 7][:start] + slots, np.int64)
    reads = Reads(table, np.array(slots, np.int64), table.tolist())
    return Row(
        "r1", start, tuple(tokens), drafts=len(tokens) - 1 if tree else 0, samples=True,
        fresh=start == 0, device_start=False, groups=(reads,), of_tree=tree,
    )  # fmt: skip


def verify(device: ShadowDevice) -> list[int]:
    """Verify a tree, each node in the slot behind the prompt's; return the accepted path."""
    tree = device.draft_tree("r1", 4, chain=False)
    every = paths([-1, *tree.parents])
    tokens = [device.requests["r1"].chain.tokens[3], *tree.tokens]
    rows = [
        row(device, 3, [tokens[node] for node in path], [4 + node for node in path], tree=True)
        for path in every
    ]
    answers = device.answers(device.launch(rows))
    assert max(map(len, answers)) == 3
    assert device.requests["r1"].computed == 6
    return every[max(range(len(answers)), key=lambda at: len(answers[at]))][:3]


def test_a_launch_accepts_the_path_that_is_right(device: ShadowDevice) -> None:
    path = verify(device)
    chain = device.requests["r1"].chain
    slots = [4 + node for node in path]  # an engine that leaves the path where it is
    table = [1, 2, 3, *slots, 19]
    reads = Reads(np.array(table), np.array([19]), table)
    later = Row("r1", 6, (chain.tokens[6],), 0, samples=True, fresh=False, device_start=False,
                groups=(reads,))  # fmt: skip
    device.launch([later])
    assert device.findings.wrong is None


def test_what_was_rejected_may_not_be_read(device: ShadowDevice) -> None:
    path = verify(device)
    rejected = next(4 + node for node in range(5) if node not in path)
    table = [1, 2, 3, 4, rejected, 4 + path[2], 19]
    reads = Reads(np.array(table), np.array([19]), table)
    own = device.requests["r1"].chain.tokens[6]
    later = Row("r1", 6, (own,), 0, samples=True, fresh=False, device_start=False, groups=(reads,))
    device.launch([later])
    assert device.findings.wrong is not None
    assert device.findings.wrong.property == DRAFTS


def test_a_path_is_one_of_the_tree_that_was_drafted(device: ShadowDevice) -> None:
    device.draft_tree("r1", 4, chain=False)
    own = device.requests["r1"].chain.tokens[3]
    device.launch([row(device, 3, [own, 999], [4, 5], tree=True)])
    assert device.findings.wrong is not None
    assert device.findings.wrong.property == TOKENS
