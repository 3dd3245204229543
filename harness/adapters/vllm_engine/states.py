"""Recurrent states in mode `align`: vLLM decides which block holds one, our device copies them.

`preprocess_mamba` and the counts of accepted drafts are the engine's code. The copies of its Triton
kernels are made here, as in their source: a state that moves on to another block is copied before a
launch, and the state at a block's border after it, when the accepted drafts are known.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import Row
from kvproof.harness.whole_engine.device import ShadowDevice

try:
    from vllm.v1.worker import mamba_utils
except ImportError:  # until 0.14 there is no mode `align`
    mamba_utils = None

Answers = Sequence[tuple[int, ...]]
MakeBuffer = Callable[[], Any]


def driven() -> bool:
    """Tell whether this release decides in the way that is followed here."""
    preprocess = getattr(mamba_utils, "preprocess_mamba", None)
    return preprocess is not None and "align_ctx" in inspect.signature(preprocess).parameters


class States:
    """Of one batch: which column of a request's table holds its running state."""

    def __init__(self, batch: Any, groups: Sequence[int], spec: Any, buffer: MakeBuffer) -> None:
        self._batch, self._groups, self._spec = batch, groups, spec
        self._columns: dict[str, int] = {}
        self._accepted: dict[str, int] = {}
        """Request -> tokens of its last launch whose states count."""
        self._last: set[str] = set()
        """Requests of the last launch."""
        self._context = _Context(groups, buffer)
        batch.num_accepted_tokens, batch.prev_positions = buffer(), buffer()
        batch.num_accepted_tokens_event = _Event(batch) if batch.num_spec_tokens else None

    def prepare(self, output: Any) -> None:
        """Let vLLM choose the states that are copied before the launch of this step."""
        batch, size = self._batch, len(self._batch.input_batch.req_ids)
        batch._compute_prev_positions(size)
        if batch.num_accepted_tokens_event is not None:
            assert _ACCEPTED is not None
            _ACCEPTED(batch, size, batch.input_batch.prev_req_id_to_index)
        self._note_counts(batch.input_batch, output.scheduled_cached_reqs.resumed_req_ids)
        mamba_utils.preprocess_mamba(
            output,
            batch.kv_cache_config,
            batch.cache_config,
            self._columns,
            batch.input_batch,
            batch.requests,
            {},
            {},
            _Buffers(self._groups, self._spec),
            align_ctx=self._context,
        )

    def skip(self) -> None:
        """Note a step that computes nothing: all requests have left the batch."""
        self._last = set()

    def _note_counts(self, rows: Any, resumed: Collection[str]) -> None:
        """Note counts that are not those of the request's last launch, for known failures."""
        findings = RUNNING.findings
        for name, count in zip(rows.req_ids, rows.num_accepted_tokens_cpu.tolist(), strict=False):
            going_on = name in self._columns and name not in resumed
            known = self._accepted.get(name, 1) if going_on else 1
            away = going_on and name not in self._last
            findings.saw("a request with recurrent states is left out of a step", away)
            if count != known:
                lost = away and count < known  # a larger count is of the request that was there
                fact = "forgotten_drafts" if lost else "drafts_of_another_row"
                wrong = findings.context.setdefault(fact, {})
                assert isinstance(wrong, dict)
                wrong[name] = known - count
        self._last = set(rows.req_ids)

    def places(self, index: int, drafts: int) -> tuple[int, range]:
        """Return where in its table a row's state is read, and where its states are written."""
        column = int(self._context.mamba_state_idx_buf.np[index])
        accepted = int(self._batch.input_batch.num_accepted_tokens_cpu[index])
        return column + accepted - 1, range(column, column + drafts + 1)

    def before(self, device: ShadowDevice, tables: Sequence[Any]) -> list[Callable[[], None]]:
        """Return the copies ahead of a launch: states that move on to another block."""
        context, size = self._context, len(self._batch.input_batch.req_ids)
        moves = [
            (index, int(source + bias), int(target))
            for index, (source, bias, target) in enumerate(
                zip(*(each.np[:size] for each in context.moves()), strict=True)
            )
            if 0 <= source != target
        ]
        names = list(self._batch.input_batch.req_ids)
        return [lambda: self._copy(device, tables, moves, names)] if moves else []

    def after(
        self, device: ShadowDevice, rows: Sequence[Row], tables: Sequence[Any]
    ) -> Callable[[Answers], list[tuple[int, ...]]]:
        """Return the work after a launch: the state at a block's border, and accepted counts."""
        columns = self._context.mamba_state_idx_buf.np[: len(rows)].tolist()
        size, batch = self._spec.block_size, self._batch.input_batch

        def run(answers: Answers) -> list[tuple[int, ...]]:
            accepted = [max(1, len(tokens)) for tokens in answers]
            moves = []
            for index, (row, column) in enumerate(zip(rows, columns, strict=True)):
                running = row.start + len(row.tokens) - row.drafts
                border = (running + accepted[index] - 1) // size * size
                if border < running:
                    continue
                target, bias = border // size - 1, border - running
                if target == column:
                    accepted[index] = 1
                if target != column or bias:
                    moves.append((index, column + bias, target))
            names = [row.request for row in rows]
            self._copy(device, tables, moves, names)
            batch.num_accepted_tokens_cpu[: len(rows)] = accepted
            self._accepted.update(zip(names, accepted, strict=True))
            return list(answers)

        return run

    def _copy(
        self,
        device: ShadowDevice,
        tables: Sequence[Any],
        moves: Sequence[tuple[int, int, int]],
        names: Sequence[str],
    ) -> None:
        for index, source, target in moves:
            for group in self._groups:
                blocks = tables[group][index]
                self._note_columns(names[index], blocks, target)
                device.memory.copy_state(
                    group, int(blocks[source]), int(blocks[target]), launch=device.executed
                )

    def _note_columns(self, name: str, blocks: Any, target: int) -> None:
        """Note a copy into a block that the worker's table has in two columns: known failures."""
        if blocks[target] and int((blocks == blocks[target]).sum()) > 1:
            noted = RUNNING.findings.context.setdefault("states_in_two_columns", {})
            assert isinstance(noted, dict)
            noted.setdefault(name, []).append((target + 1) * self._spec.block_size)


class _Context:
    """Replaces the context of vLLM's fused kernels: it keeps their arguments."""

    is_initialized = True

    def __init__(self, groups: Sequence[int], buffer: MakeBuffer) -> None:
        self.mamba_group_ids = list(groups)
        self.mamba_state_idx_buf = buffer()
        self.precopy_src_col_buf = buffer()
        self.precopy_token_bias_buf = buffer()

    def moves(self) -> tuple[Any, Any, Any]:
        """Return source column, accepted drafts beyond it, and target column, by row."""
        return self.precopy_src_col_buf, self.precopy_token_bias_buf, self.mamba_state_idx_buf

    def run_fused_precopy(self, **_: Any) -> None:
        """The launch copies."""


class _Buffers:
    """The attributes of its copy buffers that `preprocess_mamba` looks up."""

    offset = 0

    def __init__(self, groups: Sequence[int], spec: Any) -> None:
        self.mamba_group_ids, self.mamba_spec = list(groups), spec


class _Event:
    """The event after which the counts of the last launch are on the host."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def synchronize(self) -> None:
        """Wait for the last launch."""
        self._batch.counts()


_ARGUMENTS = ("self", "num_reqs", "prev_req_id_to_index")


def _source_of_sync() -> Callable[..., None]:
    """Return the lines of `_prepare_inputs` that take over the counts of accepted drafts.

    Raises LookupError where a release has no such lines.
    """
    name = "needs_cpu_accepted_counts"
    tree = ast.parse(textwrap.dedent(inspect.getsource(GPUModelRunner._prepare_inputs)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    lines = [
        each
        for each in function.body
        if isinstance(each, (ast.Assign, ast.If)) and name in ast.unparse(each).splitlines()[0]
    ]
    if not lines:
        message = f"{name} is not in GPUModelRunner._prepare_inputs"
        raise LookupError(message)
    function.body = list(lines)
    function.name, function.decorator_list, function.returns = "sync", [], None
    function.args.args = [ast.arg(each) for each in _ARGUMENTS]
    found: dict[str, Any] = {"np": np}
    exec(compile(ast.fix_missing_locations(tree), "<_prepare_inputs>", "exec"), found)  # noqa: S102 - the engine's own lines
    return found["sync"]  # type: ignore[no-any-return] # exec has no types


_ACCEPTED = _source_of_sync() if driven() else None
