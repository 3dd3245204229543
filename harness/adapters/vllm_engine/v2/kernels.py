"""Runs vLLM's own kernels of model runner V2 from their source, now or in stream order.

Triton is not in the engine's environment, so vLLM has left the kernels as plain functions. While a
step is prepared they are queued: the host's arguments are copied then, as in a stream; values on
the device are read when the launch is executed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.math_utils import cdiv
from vllm.v1.worker.gpu import block_table, buffer_utils, input_batch

from kvproof.harness.adapters.vllm_engine.v2.language import Language, Pointer

_KERNELS = {
    buffer_utils: ("_apply_write_kernel",),
    block_table: ("_gather_block_tables_kernel", "_compute_slot_mappings_kernel"),
    input_batch: (
        "_prepare_prefill_inputs_kernel",
        "_prepare_pos_seq_lens_kernel",
        "_combine_sampled_and_draft_tokens_kernel",
        "_get_num_sampled_and_rejected_kernel",
        "_post_update_kernel",
        "_expand_idx_mapping_kernel",
    ),
}
_ON_DEVICE = frozenset(
    (
        "output_ptr",
        "input_ids_ptr",
        "next_prefill_tokens_ptr",
        "all_token_ids_ptr",
        "num_computed_tokens_ptr",
        "pos_ptr",
        "pos",
        "seq_lens_ptr",
        "last_sampled_tokens_ptr",
        "draft_tokens_ptr",
        "logits_indices_ptr",
        "expanded_idx_mapping_ptr",
        "expanded_local_pos_ptr",
        "slot_mappings_ptr",
        "total_len_ptr",
    )
)
"""Arguments that earlier launches change; all others come from the host."""
LANGUAGE = Language()
QUEUE: list[Callable[[], None]] = []
"""Kernels of the step that is being prepared."""


class Stream:
    """Whether kernels are queued or run at once."""

    open = False


class Kernel:
    """A kernel with a grid, as Triton's `jit` makes it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.__wrapped__ = function
        self._names = tuple(inspect.signature(function).parameters)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            given = dict(zip(self._names, arguments, strict=False))
            given |= {name: each for name, each in options.items() if name in self._names}
            passed = {name: _passed(name, each) for name, each in given.items()}
            if Stream.open:
                QUEUE.append(lambda: self._run(grid, passed))
            else:
                self._run(grid, passed)

        return launch

    def _run(self, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        LANGUAGE.grid = grid
        for program in product(*map(range, grid)):
            LANGUAGE.program = program
            self.__wrapped__(**arguments)


def _passed(name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    memory = value.numpy().reshape(-1)
    if Stream.open and name not in _ON_DEVICE:
        memory = memory.copy()
    return Pointer(memory)


@cache
def install() -> None:
    """Put the kernels in place of the functions that vLLM cannot launch here."""
    for module, names in _KERNELS.items():
        module.tl = LANGUAGE
        module.triton = SimpleNamespace(
            cdiv=cdiv, next_power_of_2=lambda n: 1 << (n - 1).bit_length()
        )
        for name in names:
            setattr(module, name, Kernel(getattr(module, name)))
