"""SGLang's pool of recurrent states: its slots, their holders, and what a batch does with them.

A request has a running slot, and with tracked checkpoints one or two more. A hit copies the state
of a node of the tree into the running slot at the beginning of a batch; a batch leaves the state
after each row there, and checkpoints at lengths that SGLang's attention backend names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.whole_engine import StateUse, StateWrite
from kvproof.harness.model.records import GroupKind
from kvproof.harness.whole_engine.memory import Layer, Pool

STATE = "state"
"""Name of the memory."""
MODEL_TYPE = "kvproof_hybrid"
CHUNK = 4
"""Tokens of a chunk of the kernels: states inside a row are known at its multiples alone."""
_PARTS = ("matrix", "window")


class States:
    """The pool of states of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._rows = scheduler, scheduler.req_to_token_pool
        self._pool, self._allocator = self._rows.mamba_pool, self._rows.mamba_allocator
        self.size = int(self._allocator.size)
        self._given: set[int] = set()
        self._in_forward = False
        self._before: list[Callable[[], None]] = []
        """Changes of slots that wait for the launch of their batch."""
        self.changed: Callable[[Sequence[int]], None] = lambda _: None
        """Gets the slots that the batch has changed before its rows run."""
        self._note_given()
        for name, taken in (("clear_slots", 0), ("copy_from", 1)):
            setattr(self._pool, name, partial(self._change, getattr(self._pool, name), taken))

    def _note_given(self) -> None:
        hand_out = self._allocator.alloc

        def noting(count: int) -> Any:
            slots = hand_out(count)
            self._given.update(() if slots is None else slots.tolist())
            return slots

        self._allocator.alloc = noting

    def _change(self, run: Callable[..., None], target: int, *slots: Any) -> None:
        """Clear or copy slots: with the launch, if it is a batch that does it, else at once."""
        own = [each.clone() for each in slots]

        def change() -> None:
            run(*own)
            self.changed(own[target].tolist())

        if self._in_forward:
            self._before.append(change)
        else:
            change()

    def forward(self, run: Callable[[], Any]) -> Any:
        """Run a batch by the engine's own function."""
        self._in_forward = True
        try:
            return run()
        finally:
            self._in_forward = False

    def before(self) -> list[Callable[[], None]]:
        """Return the changes of the batch that is being launched."""
        found, self._before = self._before, []
        return found

    def given(self) -> set[int]:
        """Return the slots handed out since the last call."""
        found, self._given = self._given, set()
        return found

    def pool(self, kind: GroupKind, page: int) -> Pool:
        """Return the tensors of states as a pool."""
        cache = self._pool.mamba_cache
        layers = [
            Layer(f"state {layer}, {part}", _words(tensor[layer]), part=part)
            for layer in range(kind.layers)
            for part, tensor in zip(_PARTS, (cache.temporal, cache.conv[0]))  # noqa: B905 - equal by make
        ]
        return Pool(kind, page, 1, layers, memory=STATE)

    def slot(self, row: int) -> int:
        """Return the running slot of a row of the request table, as the map has it now."""
        return int(self._rows.req_index_to_mamba_index_mapping[row])

    def held(self, native: Any) -> list[int]:
        """Return the slots that a request holds: its running one first, then its tracked ones."""
        running, tracked = native.kv.mamba_pool_idx, native.kv.mamba_ping_pong_track_buffer
        found = [] if running is None else [int(running)]
        return found + ([] if tracked is None else [each for each in tracked.tolist() if each >= 0])

    def checkpoints(self, forward: Any) -> list[list[StateWrite]]:
        """Return the checkpoints of a batch, by the row whose tokens they have seen."""
        found: list[list[StateWrite]] = [[] for _ in range(forward.batch_size)]
        backend = self._scheduler.tp_worker.model_runner.attn_backend.linear_attn_backend
        plan = backend.forward_metadata
        if not plan.has_mamba_track_mask:
            return found
        if forward.forward_mode.is_decode():
            for row, tracked in enumerate(forward.mamba_track_mask.tolist()):
                if tracked:
                    place, end = int(plan.mamba_track_indices[row]), int(forward.seq_lens[row])
                    found[row].append(StateWrite(place, end))
            return found
        rows = _Rows(forward.extend_seq_lens.tolist(), forward.extend_prefix_lens.tolist())
        _add_matrices(found, rows, plan)
        _add_windows(found, rows, plan)
        return found

    def cached(self) -> dict[int, int]:
        """Return the slots in the tree."""
        tree = self._scheduler.tree_cache
        if not hasattr(tree, "tree_core"):
            return {}
        return {each: each for each in tree.tree_core.all_mamba_values_flatten().tolist()}

    def counts(self) -> tuple[int, int, Mapping[str, int]]:
        """Return the numbers of slots that can be handed out, of all slots, and of odd ones."""
        free, cached, tree = self._allocator.free_slots.tolist(), self.cached(), self._scheduler
        locked = tree.tree_cache.mamba_protected_size() if cached else 0
        odd = {
            "states free twice": len(free) - len({*free}),
            "states both free and cached": len({*free} & cached.keys()),
            "states of the tree in use": locked,
        }
        return len({*free} | cached.keys()) - locked, self.size, odd


class _Rows:
    """Rows of a batch that computes prompts: tokens that are computed, and tokens before them."""

    def __init__(self, lengths: Sequence[int], prefixes: Sequence[int]) -> None:
        self.lengths, self.prefixes = lengths, prefixes
        self.starts = [*accumulate(lengths, initial=0)]
        self.chunks = [*accumulate((-(-each // CHUNK) for each in lengths), initial=0)]
        """Number of the first inner state of each row."""

    def at(self, firsts: Sequence[int], number: int) -> tuple[int, int]:
        """Return the row that a number of `firsts` lies in, and the place in it."""
        row = int(np.searchsorted(firsts, number, side="right")) - 1
        return row, number - firsts[row]

    def end(self, row: int) -> int:
        """Return how many tokens a row has seen at its end."""
        return self.prefixes[row] + self.lengths[row]


def _add_matrices(found: list[list[StateWrite]], rows: _Rows, plan: Any) -> None:
    """Add the matrices: those of an inner chunk, and those that are copied after the row."""
    part = _PARTS[0]
    for source, target in zip(plan.track_ssm_h_src.tolist(), plan.track_ssm_h_dst.tolist()):  # noqa: B905 - equal by make
        row, chunk = rows.at(rows.chunks, source)
        found[row].append(StateWrite(target, rows.prefixes[row] + chunk * CHUNK, part))
    running = plan.mamba_cache_indices.tolist()
    pairs = zip(plan.track_ssm_final_src.tolist(), plan.track_ssm_final_dst.tolist())  # noqa: B905 - as above
    for source, target in pairs:
        row = running.index(source)
        found[row].append(StateWrite(target, rows.end(row), part))


def _add_windows(found: list[list[StateWrite]], rows: _Rows, plan: Any) -> None:
    """Add the windows of the convolution, each of which ends after its last token."""
    tracked = plan.mamba_track_mask_indices.tolist()
    for row, places in zip(tracked, plan.track_conv_indices.tolist()):  # noqa: B905 - as above
        owner, last = rows.at(rows.starts, places[-1])
        target = int(plan.mamba_track_indices[row])
        found[owner].append(StateWrite(target, rows.prefixes[owner] + last + 1, _PARTS[1]))


def use(slot: int, end: int, checkpoints: Sequence[StateWrite]) -> StateUse:
    """Return the states of a row whose running slot is given."""
    return StateUse(slot, (StateWrite(slot, end), *checkpoints))


def _words(states: Any) -> npt.NDArray[np.uint64]:
    """View a layer's states as [slots, 2] words; they are not copied."""
    import torch

    flat = states.view(states.shape[0], -1)
    words: npt.NDArray[np.uint64] = flat.view(torch.int64).numpy().view(np.uint64)
    return words
