"""N-gram drafts: SGLang verifies a tree and moves its accepted path, and our corpus drafts it.

A launch that verifies has a row for each path of each tree. It is executed at once: the host asks
for its tokens before it goes on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.harness.adapters.sglang_engine.requests import name_of
from kvproof.harness.adapters.sglang_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import EngineConfig, Reads, Row, Slots
from kvproof.harness.model.chain import FIRST_TOKEN
from kvproof.harness.model.draft_trees import paths
from kvproof.harness.whole_engine.checks import SLOTS
from kvproof.harness.whole_engine.findings import Findings, IllegalAccess

ByGroup = Callable[[Slots], list[Slots]]
_CHAIN, _BREADTH = 1, 8
"""Most children of a node: SGLang refuses trees in pages of several tokens."""


def arguments(config: EngineConfig) -> Mapping[str, Any]:
    """Return the server's arguments; a tree has a node for the last known token, too."""
    if config.drafts is None:
        return {}
    return {
        "speculative_algorithm": config.drafts.method.upper(),
        "speculative_num_draft_tokens": config.drafts.count + 1,
        "speculative_ngram_max_bfs_breadth": _BREADTH if config.block_size == 1 else _CHAIN,
    }


def install() -> None:
    """Put our corpus in place, and let the scheduler run ahead as it does with a GPU."""
    worker: Any = importlib.import_module("sglang.srt.speculative.ngram_worker")
    worker.NgramCorpus = Corpus
    hook: Any = importlib.import_module("sglang.srt.arg_groups.speculative_hook")
    hook._disable_overlap_schedule_for_cpu = lambda _: None


class Corpus:
    """Drafts of the device, as SGLang's corpus of n-grams gives them."""

    def __init__(self, *, draft_token_num: int, max_bfs_breadth: int, **_: Any) -> None:
        self._nodes, self._chain = draft_token_num, max_bfs_breadth == _CHAIN

    def batch_get(
        self, names: Sequence[str], tokens: Sequence[Sequence[int]], _: Sequence[int]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the nodes of each request's tree, and which of them each one follows."""
        drafts, masks, device = list[int](), [], RUNNING.launches.device
        for name, own in zip(names, tokens):  # noqa: B905 - equal by make
            tree = device.draft_tree(name_of(name), self._nodes - 1, chain=self._chain)
            drafts += [own[-1], *tree.tokens]
            mask = np.eye(self._nodes, dtype=np.bool_)
            for node, parent in enumerate(tree.parents, 1):
                mask[node] |= mask[parent]
            masks.append(mask.ravel())
        return np.array(drafts, np.int64), np.concatenate(masks)

    def synchronize(self) -> None:
        """Wait for nothing."""

    def batch_put(self, _: object) -> None:
        """Learn nothing."""

    def erase_match_state(self, _: object) -> None:
        """Forget nothing."""

    def reset(self) -> None:
        """Forget nothing."""


class Trees:
    """The trees of one launch that verifies drafts."""

    def __init__(self, input_ids: Any, positions: Any, forward: Any) -> None:
        self.nodes = int(forward.spec_info.draft_token_num)
        size = (forward.batch_size, self.nodes)
        self._tokens = input_ids.numpy().reshape(size)
        self._positions = positions.numpy().reshape(size)
        self._slots = forward.out_cache_loc.numpy().astype(np.int64).reshape(size)
        self._mask = forward.spec_info.custom_mask.numpy().reshape(*size, self.nodes)
        self._names = [name_of(each) for each in forward.rids]
        self._places: list[tuple[int, list[int]]] = []
        """(Request of the batch, nodes) of each row."""

    def rows(
        self,
        tables: Sequence[Slots],
        window: Callable[[int, int], Slots],
        by_group: ByGroup,
        findings: Findings,
        page: int,
    ) -> list[Row]:
        """Return a row for each path.

        `tables`: slots of the committed tokens; `window`: those of the request table after them.
        """
        found = []
        for index, table in enumerate(tables):
            own = window(index, self.nodes)
            slots, name = self._slots[index], self._names[index]
            findings.check(
                SLOTS,
                np.array_equal(own, slots),
                lambda: f"{name} writes drafts to {slots.tolist()}, its table says {own.tolist()}",  # noqa: B023 - called at once
            )
            for path in paths(self._parents(index)):
                self._check_positions(index, path, len(table))
                self._places.append((index, path))
                found.append(self._row(index, path, by_group(table), by_group(slots[path]), page))
        return found

    def _parents(self, index: int) -> list[int]:
        before = np.tril(self._mask[index], -1)
        return [int(np.flatnonzero(each)[-1]) if each.any() else -1 for each in before]

    def _check_positions(self, index: int, path: Sequence[int], start: int) -> None:
        found = self._positions[index][path].tolist()
        if found != [*range(start, start + len(path))]:
            raise IllegalAccess(f"{self._names[index]} verifies {found}, its length is {start}")

    def _row(
        self, index: int, path: list[int], tables: list[Slots], writes: list[Slots], page: int
    ) -> Row:
        groups = tuple(
            Reads(np.concatenate([table, own]), own, (table[::page] // page).tolist())
            for table, own in zip(tables, writes)  # noqa: B905 - equal by make
        )
        return Row(
            request=self._names[index],
            start=len(tables[0]),
            tokens=tuple(self._tokens[index][path].tolist()),
            drafts=len(path) - 1,
            samples=True,
            fresh=False,
            device_start=False,
            groups=groups,
            of_tree=True,
        )

    def answers(self, found: Sequence[tuple[int, ...]], findings: Findings) -> list[int]:
        """Return the token after each node; no one may ask for those after a wrong draft."""
        tokens = np.full(self._tokens.shape, FIRST_TOKEN)
        for (index, path), own in zip(self._places, found):  # noqa: B905 - equal by make
            accepted = path[: len(own)]
            tokens[index][accepted] = own
            findings.saw("an accepted path of drafts is moved", accepted != [*range(len(own))])
        return [int(each) for each in tokens.ravel()]
