"""vLLM, model runner V2: hooks around the call that hands tables and slots to attention.

Written for 0.33.0. `prepare_attn` is called once a step, before the forward; its tensors are those
that every attention layer of a group gets. The tables' log copies them as they are returned; the
canary's kernels follow on the same stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kvproof.harness.live.tables import Group, Ints, Launch, Reads, Row, Tables
from kvproof.harness.live.vllm_faults import Planted
from kvproof.kernels.canary.canary import Canary, Rows, Seen

FULL = ("FullAttentionSpec", "SlidingWindowSpec")
"""Specifications of layers whose slots keep a token each."""


class Unsupported(Exception):
    """A model that cannot be watched, with the reason."""


class _Noted(NamedTuple):
    """One launch, still on the device."""

    names: list[str]
    starts: Ints
    positions: torch.Tensor
    inputs: torch.Tensor
    tables: list[torch.Tensor]
    slots: torch.Tensor


class Hooks:
    """Watches one model runner until it is gone."""

    fault: Planted | None = None
    """A fault that is planted in the launches from now on."""

    def __init__(self, runner: Any, salts: Mapping[str, int], *, share: float = 1.0) -> None:
        """`salts`: name space of requests; requests that are not there have none.

        Raises Unsupported.
        """
        config, device = runner.kv_cache_config, runner.device
        self.groups = [_group(each.kv_cache_spec) for each in config.kv_cache_groups]
        if len({each.block_size for each in self.groups}) > 1:
            raise Unsupported("its groups have blocks of unequal size")
        self.tables = Tables(self.groups, config.num_blocks)
        size = self.groups[0].block_size
        words = torch.zeros((config.num_blocks, size), dtype=torch.int64, device=device)
        # groups take blocks of one pool: one that another group has taken holds other words
        self.canaries = [Canary(words, share=share) for _ in self.groups]
        self.computed: dict[str, dict[int, int]] = {}
        """Request -> position -> id that the model computed there."""
        self._runner, self._names = runner, salts
        shape = len(self.groups), runner.max_num_reqs
        self._salts = torch.zeros(shape, dtype=torch.int64, device=device)
        # vLLM's own record lies in host memory: reading it there is four times as slow
        self._ids = torch.zeros(
            (runner.max_num_reqs, runner.max_model_len), dtype=torch.int32, device=device
        )
        each_group = torch.arange(len(self.groups), device=device) << 40
        self._noted: list[_Noted] = []
        self._prepare, runner.prepare_attn = runner.prepare_attn, self._prepared
        add = runner.req_states.add_request

        def added(req_id: str, *, all_token_ids: Sequence[int], **more: Any) -> None:
            add(req_id, all_token_ids=all_token_ids, **more)
            own = runner.req_states.req_id_to_index[req_id]
            ids = torch.tensor(all_token_ids, dtype=torch.int32)
            self._ids[own, : len(ids)] = ids.to(device, non_blocking=True)
            self._salts[:, own] = each_group + salts.get(req_id, 0)

        runner.req_states.add_request = added

    def _prepared(self, batch: Any) -> Any:
        fault, runner = self.fault, self._runner
        if fault:
            fault.before(runner, batch)
        tables, slots = self._prepare(batch)
        if fault:
            fault.returned(batch, tables, slots)
        self._note(batch, tables, slots)
        if fault:
            fault.behind(batch, tables, slots)
        rows = [
            Rows(
                self._ids,
                salts,
                batch.idx_mapping[: batch.num_reqs],
                batch.input_ids,
                batch.positions,
                batch.query_start_loc,
            )
            for salts in self._salts
        ]
        for canary, own, taken in zip(self.canaries, rows, slots, strict=True):
            canary.write(own, taken)
        for canary, own, table, group in zip(self.canaries, rows, tables, self.groups, strict=True):
            canary.check(own, table, entry=group.block_size, window=group.window)
            canary.send()
        return tables, slots

    def _note(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        count = batch.num_reqs
        self._noted.append(
            _Noted(
                list(batch.req_ids),
                batch.query_start_loc_np[: count + 1].astype("int64"),
                batch.positions.clone(),
                batch.input_ids.clone(),
                [each[:count].clone() for each in tables],
                slots.clone(),
            )
        )

    def judge(self, prompts: Mapping[str, Sequence[int]]) -> list[str]:
        """Judge the tables of the launches since the last call; waits for the device."""
        for each in self._noted:
            self.tables.launches.append(self._launch(each))
        self._noted.clear()
        found, tokens = [], {}
        for name, own in self.computed.items():
            prompt = prompts[name]
            ids = list(prompt)
            for position, token in sorted(own.items()):
                if position < len(prompt) and token != prompt[position]:
                    found.append(f"{name} computes id {token} at {position} of its prompt")
                ids[position:] = [token] if position >= len(prompt) else ids[position:]
            tokens[name] = ids
        self.computed.clear()
        return found + self.tables.judge(tokens, self._names)

    def seen(self) -> list[Seen]:
        """Return the counts of each group's canary; waits for the device."""
        return [each.wait() for each in self.canaries]

    def _launch(self, noted: _Noted) -> Launch:
        positions, inputs = noted.positions.tolist(), noted.inputs.tolist()
        tables = [each.cpu().numpy().astype("int64") for each in noted.tables]
        slots = noted.slots.cpu().numpy()
        rows = []
        for at, name in enumerate(noted.names):
            begin, end = (int(each) for each in noted.starts[at : at + 2])
            self.computed.setdefault(name, {}).update(
                zip(positions[begin:end], inputs[begin:end], strict=True)
            )
            groups = tuple(
                Reads(table[at], own[begin:end]) for table, own in zip(tables, slots, strict=True)
            )
            rows.append(Row(name, positions[begin], groups))
        padding = tuple(own[noted.starts[-1] :] for own in slots)
        return Launch(tuple(rows), padding)


def _group(spec: Any) -> Group:
    name = type(spec).__name__
    if name not in FULL:
        message = f"layers of {name} are not watched, only {' and '.join(FULL)}"
        raise Unsupported(message)
    return Group(spec.block_size, int(getattr(spec, "sliding_window", None) or 0))
