"""Recurrent states as LMDeploy's input maker and engine loop treat them.

Each request has one row of a separate pool. At the end of a prompt step its state is saved to
another row, owned by a trie node; from 0.16 on also inside a block, with a frozen copy of that
block. A hit copies such a row, and the frozen block to one of the request, before the step.

Engine environment only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvproof.harness.adapters.lmdeploy.releases import Checkpoints
from kvproof.harness.adapters.lmdeploy.view import View
from kvproof.harness.contract.target import StateUse, Table, TargetConfig

_BLOCKS, _STATE = 0, 1
"""The groups of a configuration with states."""


class Moves(NamedTuple):
    """State and frozen-block copies of one step, in the contract's terms."""

    copies: tuple[tuple[int, int, int], ...] = ()
    states: tuple[StateUse, ...] = ()
    saves: tuple[tuple[int, int, int], ...] = ()


class States:
    """Follows the states of one scheduler; without recurrent layers there are none."""

    def __init__(self, checkpoints: Checkpoints | None, view: View, config: TargetConfig) -> None:
        self._checkpoints, self._view = checkpoints, view
        self._size, self._interval = config.block_size, config.decode_interval
        self._inside = config.partial_blocks
        self._caching = config.prefix_caching
        if checkpoints is not None:
            checkpoints.watch()

    def __bool__(self) -> bool:
        return self._checkpoints is not None

    def rows(self, native: Any) -> tuple[Table, ...]:
        """The tables of the states of a request."""
        return ((int(native.logical_state),),) if self else ()

    def budget(self, start: int, known: int, compute: int | None) -> int | None:
        """Tokens of a prompt step; with checkpoints at block borders only, it ends at the last."""
        if not self or self._inside:
            return compute
        stop = known if compute is None else min(known, start + compute)
        border = stop // self._size * self._size
        return border - start if border > start else compute

    def decoded(self, start: int, known: int, compute: int | None) -> int:
        """Tokens of a step of decoding, which ends where a checkpoint is due."""
        due = (start // self._interval + 1) * self._interval if self._interval else known
        return min(due, known, known if compute is None else start + compute) - start

    def moves(self, native: Any, start: int, stop: int, prompt: int) -> Moves:
        """Return the copies and writes of the step scheduled last."""
        if self._checkpoints is None:
            return Moves()
        row = (int(native.logical_state),)
        restored = self._checkpoints.restore(native)
        saved = self._save(native, start, stop, prompt)
        use = StateUse(_STATE, row if start else (), ((stop, row),))
        return Moves(self._named(restored), (use,), self._named(saved))

    def _save(self, native: Any, start: int, stop: int, prompt: int) -> Checkpoints.Copies:
        assert self._checkpoints is not None
        aligned = stop % self._size == 0
        if not self._caching or not (aligned or self._inside):
            return Checkpoints.Copies()
        if start >= prompt:
            return self._checkpoints.save_decoded(native, self._interval, stop)
        return self._checkpoints.save(native, stop)

    def _named(self, copies: Checkpoints.Copies) -> tuple[tuple[int, int, int], ...]:
        place = self._view.physical
        blocks = [(_BLOCKS, place(source), place(target)) for source, target in copies.blocks]
        return (*blocks, *((_STATE, source, target) for source, target in copies.rows))

    def admitted(self, native: Any) -> None:
        """Note whether a new request has given its hit up."""
        if self._checkpoints is not None:
            self._checkpoints.admitted(native)

    def ran(self, native: Any) -> None:
        """Publish the states that a completed step saved."""
        if self._checkpoints is not None:
            self._checkpoints.ran(native)
