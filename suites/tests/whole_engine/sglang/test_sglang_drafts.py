"""SGLang's drafts without SGLang: our corpus, the kernels that it lacks, and a launch of trees."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvproof.harness.adapters.sglang_engine.drafts import Corpus, Trees
from kvproof.harness.adapters.sglang_engine.requests import rid
from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import Slots
from kvproof.harness.model.draft_trees import DraftTree
from kvproof.harness.whole_engine.checks import SLOTS
from kvproof.harness.whole_engine.findings import Findings, IllegalAccess

torch = pytest.importorskip("torch")

from kvproof.harness.adapters.sglang_engine import draft_kernels as kernels  # noqa: E402 - needs torch

TREE = DraftTree((31, 32, 41, 42), (0, 0, 2, 3))
"""Node 2 follows the last known token, and nodes 3 and 4 follow it; node 1 is on its own."""
START = 6


@pytest.fixture(autouse=True)
def _corpus() -> Iterator[None]:
    RUNNING.launches = SimpleNamespace(device=SimpleNamespace(draft_tree=lambda *_, **__: TREE))
    yield
    RUNNING.launches = None


def drafts() -> tuple[Any, Any]:
    corpus = Corpus(draft_token_num=5, max_bfs_breadth=8)
    tokens, mask = corpus.batch_get([rid("r1")], [[7, 21]], [START + 1])
    return torch.from_numpy(tokens), torch.from_numpy(mask)


def test_the_corpus_gives_a_tree_behind_the_last_token() -> None:
    tokens, mask = drafts()
    assert tokens.tolist() == [21, 31, 32, 41, 42]
    assert mask.view(5, 5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [1, 0, 1, 1, 1],
    ]


def links() -> tuple[Any, ...]:
    _, mask = drafts()
    found = (torch.zeros(5, dtype=torch.int64), *(torch.zeros(1, 5).long() for _ in range(3)))
    kernels.reconstruct_indices_from_tree_mask(mask, torch.tensor([START]), *found, 1, 5)
    return found


def test_links_of_a_tree_follow_from_its_mask() -> None:
    positions, places, children, siblings = links()
    assert positions.tolist() == [6, 7, 7, 8, 9]
    assert places.tolist() == [[0, 1, 2, 3, 4]]
    assert children.tolist() == [[1, -1, 3, 4, -1]]
    assert siblings.tolist() == [[-1, 2, -1, -1, -1]]


@pytest.mark.parametrize(
    ("answers", "path"),
    [([32, 9, 41, 8, 7], [0, 2, 3]), ([31, 8, 7, 7, 7], [0, 1]), ([9, 9, 9, 9, 9], [0])],
)
def test_the_accepted_path_follows_what_the_model_answers(
    answers: list[int], path: list[int]
) -> None:
    tokens, _ = drafts()
    _, places, children, siblings = links()
    predicts, count = torch.zeros(5, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    index = torch.full((1, 5), -1, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=index,
        accept_token_num=count,
        candidates=tokens.view(1, 5),
        retrive_index=places,
        retrive_next_token=children,
        retrive_next_sibling=siblings,
        target_predict=torch.tensor([answers]),
    )
    assert index[0][: len(path)].tolist() == path
    assert index[0][len(path) :].tolist() == [-1] * (5 - len(path))
    assert count.item() == len(path) - 1
    assert predicts[path].tolist() == [answers[node] for node in path]
    slots = torch.zeros(5, dtype=torch.int64)
    kernels.fill_accept_out_cache_loc_cpu(index, torch.arange(50, 55), slots)
    assert slots[: len(path)].tolist() == [50 + node for node in path]


def test_stretches_of_the_request_table_are_written_and_read() -> None:
    table, rows = torch.zeros((3, 8), dtype=torch.int32), torch.tensor([2, 1])
    between = torch.tensor([1, 4]), torch.tensor([3, 5])
    kernels.assign_req_to_token_pool_cpu(rows, table, *between, torch.tensor([11, 12, 13]), 8)
    assert table[2].tolist() == [0, 11, 12, 0, 0, 0, 0, 0]
    slots = torch.zeros(3, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, *between, slots, 8)
    assert slots.tolist() == [11, 12, 13]


def trees(positions: Any) -> Trees:
    tokens, mask = drafts()
    spec = SimpleNamespace(draft_token_num=5, custom_mask=mask)
    slots = torch.arange(10, 15)
    forward = SimpleNamespace(batch_size=1, rids=[rid("r1")], out_cache_loc=slots, spec_info=spec)
    return Trees(tokens, positions, forward)


TABLE = np.arange(1, 1 + START)


def window(_: int, count: int) -> Slots:
    return np.arange(10, 10 + count)


def test_a_launch_has_a_row_for_each_path_of_a_tree() -> None:
    own, findings = trees(links()[0]), Findings()
    rows = own.rows([TABLE], window, lambda slots: [slots], findings, 1)
    assert [each.tokens for each in rows] == [(21, 31), (21, 32, 41, 42)]
    assert rows[1].groups[0].table.tolist() == [1, 2, 3, 4, 5, 6, 10, 12, 13, 14]
    assert rows[1].groups[0].writes.tolist() == [10, 12, 13, 14]
    assert all(each.of_tree and each.start == START for each in rows)
    assert findings.wrong is None
    tokens = own.answers([(32,), (32, 41, 9)], findings)
    assert [tokens[node] for node in (0, 2, 3)] == [32, 41, 9]
    assert findings.situations["an accepted path of drafts is moved"] == 1


def test_slots_beside_the_table_and_positions_beside_the_tree_are_found() -> None:
    findings = Findings()
    trees(links()[0]).rows(
        [TABLE], lambda _, count: np.arange(11, 11 + count), lambda slots: [slots], findings, 1
    )
    assert findings.wrong is not None
    assert findings.wrong.property == SLOTS
    with pytest.raises(IllegalAccess, match="its length is 6"):
        trees(links()[0] + 1).rows([TABLE], window, lambda slots: [slots], Findings(), 1)
