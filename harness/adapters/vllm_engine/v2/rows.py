"""Rows of a launch of model runner V2: as the host believes them, and as its kernels made them.

It reads the fields of a runner and of its batches alone, and imports no engine: the same code
serves the runner on the shadow device and the engine's own on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kvproof.harness.contract.whole_engine import OWN, Reads, Row, Span
from kvproof.harness.whole_engine.device import ShadowDevice

Owned: TypeAlias = Sequence[Sequence[int]]
"""Blocks of a request by group, as the engine's manager has them."""
_NONE = np.empty(0, np.int64)


class Made(NamedTuple):
    """The tensors of one step, read when the launch is executed."""

    starts: Any
    """[rows + 1], on the host: the first token of each row."""
    inputs: Any
    positions: Any
    tables: Sequence[Any]
    slots: Any

    @classmethod
    def of(cls, batch: Any, tables: Sequence[Any], slots: Any) -> Made:
        """Refer to the tensors of a batch."""
        return cls(batch.query_start_loc_np, batch.input_ids, batch.positions, tables, slots)

    def kept(self) -> Made:
        """Copy the tensors that the next step overwrites, in stream order."""
        inputs, positions = self.inputs.clone(), self.positions.clone()
        tables, slots = [each.clone() for each in self.tables], self.slots.clone()
        return Made(self.starts.copy(), inputs, positions, tables, slots)


class BatchRows:
    """The rows of one runner's batches."""

    def __init__(
        self,
        runner: Any,
        *,
        adapter_of: Callable[[Any], tuple[str, int]],
        media_of: Callable[[Sequence[Any]], tuple[Span, ...]],
    ) -> None:
        self._runner, self._adapter_of, self._media_of = runner, adapter_of, media_of
        self._media: dict[str, Any] = {}
        self._fresh: set[str] = set()

    def arrived(self, output: Any) -> None:
        """Note the requests that a step adds."""
        self._fresh = {each.req_id for each in output.scheduled_new_reqs}
        self._media |= {each.req_id: each.mm_features for each in output.scheduled_new_reqs}

    def believed(self, batch: Any, owned: Callable[[str], Owned]) -> list[Row]:
        """Return the rows as the host knows them."""
        return [self._believed(batch, at, owned) for at in range(batch.num_reqs)]

    def _believed(self, batch: Any, at: int, owned: Callable[[str], Owned]) -> Row:
        name, index = batch.req_ids[at], int(batch.idx_mapping_np[at])
        per_row = batch.num_draft_tokens_per_req
        start, count = int(batch.num_computed_tokens_np[at]), int(batch.num_scheduled_tokens[at])
        blocks = owned(name)
        lora = self._runner.lora_state.lora_requests.get(name)
        return Row(
            request=name,
            start=start,
            tokens=(OWN,) * count,
            drafts=0 if per_row is None else int(per_row[at]),
            samples=start + count >= int(self._runner.req_states.prefill_len.np[index]),
            fresh=name in self._fresh,
            device_start=not batch.is_prefilling_np[at],
            adapter=self._adapter_of(lora),
            media=self._media_of(self._media.get(name) or ()),
            groups=tuple(Reads(_NONE, _NONE, list(each)) for each in blocks),
        )

    @staticmethod
    def actual(
        device: ShadowDevice,
        believed: Sequence[Row],
        made: Made,
        kernel_tables: Callable[[int, Any], Any],
    ) -> list[Row]:
        """Return the rows as the kernels have made them on the device."""
        tables = [
            kernel_tables(group, each).cpu().numpy().astype(np.int64)
            for group, each in enumerate(made.tables)
        ]
        slots, positions = made.slots.cpu().numpy(), made.positions.tolist()
        inputs = made.inputs.tolist()
        found = []
        for at, row in enumerate(believed):
            first, last = (int(each) for each in made.starts[at : at + 2])
            tokens = inputs[first:last]
            request = device.requests[row.request]
            if row.fresh or len(request.drafts) < row.drafts:
                # no drafts exist after a preemption or a chunk of a prompt: tokens fill the places
                request.drafts = tokens[len(tokens) - row.drafts :] if row.drafts else []
            groups = tuple(
                Reads(tables[group][at], slots[group, first:last].copy(), reads.owned)
                for group, reads in enumerate(row.groups)
            )
            start = positions[first]
            found.append(
                replace(row, start=start, tokens=tuple(tokens), device_start=False, groups=groups)
            )
        return found
