"""Hooks on vLLM's model runner V2: tables, content and logits of each step, for three oracles.

`prepare_attn` is called once a step, before the forward; its tensors are those that every
attention layer of a group gets. They are copied in stream order, and judged by the shadow device
when the engine asks for the answers; the canary's kernels follow on the same stream. It imports no
vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from kvproof.harness.adapters.vllm_engine.v2.rows import BatchRows, Made, Owned
from kvproof.harness.adapters.vllm_live.answers import Logits
from kvproof.harness.adapters.vllm_live.faults import Planted
from kvproof.harness.contract.whole_engine import GroupKind, Row
from kvproof.harness.model.fingerprints import epoch_key, root
from kvproof.harness.whole_engine.checks import SLOTS
from kvproof.harness.whole_engine.device import Launch, ShadowDevice
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.memory import DeviceMemory, Layer, Pool
from kvproof.kernels.canary.canary import Canary, Rows, Seen
from kvproof.kernels.canary.fingerprints import prefix_prints

GREEDY = 1e4
"""Logit that makes a drawn token the greedy one."""
COLD = "cold:"
"""Beginning of the name of a request that a cold engine answers again."""


class Watch:
    """One model runner, from history to history."""

    def __init__(self, runner: Any, kinds: Sequence[GroupKind], words: Sequence[Any]) -> None:
        """`kinds`, `words`: by group; the words of the canary are [blocks, block size]."""
        self.runner, self.kinds, self.words = runner, kinds, words
        self.logits = Logits()
        self.fault: Planted | None = None
        self.device: ShadowDevice | None = None
        self._on = False
        shape = runner.max_num_reqs, runner.max_model_len
        self._ids = torch.zeros(shape, dtype=torch.int32, device=runner.device)
        self._drawn = torch.zeros(shape, dtype=torch.int64, device=runner.device)
        """Token that follows each position, by row of the runner."""
        self._salts = torch.zeros((len(words), shape[0]), dtype=torch.int64, device=runner.device)
        self._prepare, self._sample = runner.prepare_attn, runner.sample
        self._compute, self._add = runner.model.compute_logits, runner.req_states.add_request
        runner.prepare_attn, runner.sample = self._prepared, self._sampled
        runner.model.compute_logits = self._computed
        runner.req_states.add_request = self._added
        self._batch: Any = None

    def begin(self, findings: Findings, owned: Callable[[str], Owned], seed: int) -> ShadowDevice:
        """Begin a history: an empty shadow memory, and no words on the card."""
        blocks, size = self.words[0].shape
        for each in self.words:
            each.zero_()
        self._canaries = [Canary(each) for each in self.words]
        pools = [
            Pool(kind, size, size, [Layer(f"group {at}", np.zeros((blocks, size, 2), np.uint64))])
            for at, kind in enumerate(self.kinds)
        ]
        self.device = ShadowDevice(DeviceMemory(pools, blocks), findings, seed=seed)
        self.rows = BatchRows(self.runner, adapter_of=lambda _: ("", 0), media_of=lambda _: ())
        self.logits, self._owned, self._on = Logits(), owned, True
        self.loaded: set[int] = set()
        """Blocks that another tier wrote, and no launch since."""
        self._launch: Launch | None = None
        self._copies: list[Callable[[], None]] = []
        self._steps: list[list[str]] = []
        return self.device

    @contextmanager
    def cold(self, device: ShadowDevice) -> Iterator[None]:
        """Watch nothing meanwhile but logits, of requests that a device knows."""
        kept = self.logits, self._on, self.device
        self.logits, self._on, self.device = Logits(), False, device
        connector = self.runner.kv_connector
        connector.set_disabled(True)
        try:
            yield
        finally:
            connector.set_disabled(False)
            self.logits, self._on, self.device = kept

    def step(self, output: Any) -> None:
        """Note what a step of the scheduler does to memory before its launch."""
        if not self._on:
            return
        assert self.device is not None
        self.rows.arrived(output)
        copies = list(getattr(output, "kv_cache_block_copies", None) or ())
        self._copies = [partial(self._copied, copies)] if copies else []
        if self._copies and not output.total_num_scheduled_tokens:
            self.device.launch((), self._copies)

    def answered(self, output: Any) -> Any:
        """Let the shadow device execute a launch when the engine asks for its answers."""
        get = getattr(output, "get_output", None)
        if not self._on or get is None or self._launch is None:
            return output
        assert self.device is not None
        ready = partial(self.device.answers, self._launch)

        def get_output() -> Any:
            ready()
            return get()

        output.get_output = get_output
        return output

    def forget(self, beginning: str = "") -> None:
        """Let the runner forget requests whose names begin so."""
        for name in list(self.runner.req_states.req_id_to_index):
            if name.startswith(beginning):
                self.runner._remove_request(name)

    def seen(self, *, wait: bool = False) -> list[Seen]:
        """Return the counts of each group's canary: those that have arrived, or all."""
        return [each.wait() if wait else each.poll() for each in self._canaries]

    def read_by(self, seen: Seen) -> str:
        """Return the request whose read was the first wrong one."""
        return self._steps[seen.step][seen.row]

    def _added(self, req_id: str, *, all_token_ids: Sequence[int], **more: Any) -> None:
        self._add(req_id=req_id, all_token_ids=all_token_ids, **more)
        requests = {} if self.device is None else self.device.requests
        known = requests.get(req_id.removeprefix(COLD))
        if known is None:
            return  # of vLLM's own warm-up
        length = len(known.request.prompt) + known.request.answers + 1
        known.chain.ensure(length)
        own, device = self.runner.req_states.req_id_to_index[req_id], self.runner.device
        after = torch.tensor(known.chain.tokens[1:length])[: self._drawn.shape[1]]
        self._drawn[own, : len(after)] = after.to(device, non_blocking=True)
        ids = torch.tensor(all_token_ids, dtype=torch.int32)
        self._ids[own, : len(ids)] = ids.to(device, non_blocking=True)
        for group in range(len(self.words)):
            self._salts[group, own] = self._salt(req_id.removeprefix(COLD), group)

    def _salt(self, request: str, group: int) -> int:
        """Return what separates the words of name spaces, epochs and groups, as an int64."""
        assert self.device is not None
        space = int(root(self.device.requests[request].request.namespace))
        salt = (space ^ epoch_key(self.device.epoch)) + (group << 40)
        return int(np.uint64(salt & (1 << 64) - 1).astype(np.int64))

    def _prepared(self, batch: Any) -> Any:
        if not self._on:
            return self._prepare(batch)
        if self.fault:
            self.fault.before(self.runner, batch)
        tables, slots = self._prepare(batch)
        if self.fault:
            self.fault.returned(batch, tables, slots)
        self._note(batch, tables, slots)
        if self.fault:
            self.fault.behind(batch, tables, slots)
        self._watch(batch, tables, slots)
        return tables, slots

    def _note(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Launch the step on the shadow device, with copies of its tensors."""
        assert self.device is not None
        believed = self.rows.believed(batch, self._owned)
        made = Made.of(batch, [each[: batch.num_reqs] for each in tables], slots).kept()
        loaded = sorted(self.loaded)
        words = [each[loaded].clone() for each in self.words] if loaded else []
        actual = partial(self._actual, believed, made, loaded, words)
        copies, self._copies = self._copies, []
        self._launch = self.device.launch(believed, copies, actual=actual)
        self.loaded.difference_update(self._written(believed))

    def _written(self, rows: Sequence[Row]) -> Iterator[int]:
        size = self.words[0].shape[1]
        for row in rows:
            first, last = row.start // size, (row.start + len(row.tokens) - 1) // size
            for group in row.groups:
                yield from group.owned[first : last + 1]

    def _actual(
        self, believed: Sequence[Row], made: Made, loaded: Sequence[int], words: Sequence[Any]
    ) -> list[Row]:
        assert self.device is not None
        for group, own in enumerate(words):
            self._take_over(group, loaded, own.cpu().numpy())
        padding = made.slots[:, int(made.starts[-1]) :].cpu().numpy()
        self.device.findings.check(
            SLOTS, (padding < 0).all(), lambda: f"rows of padding write slot {padding.max()}"
        )
        return self.rows.actual(self.device, believed, made, lambda _, table: table)

    def _take_over(self, group: int, blocks: Sequence[int], words: Any) -> None:
        """Take blocks that another tier wrote from the canary, which came with them."""
        assert self.device is not None
        memory = self.device.memory
        known: dict[int, int] = {}
        for name, each in self.device.requests.items():
            tokens = each.chain.tokens
            own = prefix_prints(tokens, self._salt(name, group)).tolist()
            known.update(zip(own, each.chain.prints[: len(tokens)].tolist(), strict=True))
        size = words.shape[1]
        for block, found in zip(blocks, words.tolist(), strict=True):
            taken = [known.get(each, 0) for each in found]
            slots = np.arange(block * size, (block + 1) * size)
            prints = np.array(taken, np.uint64)
            epoch, launch = self.device.epoch, int(memory.of(group).written[block])
            memory.write(group, slots[prints != 0], prints[prints != 0], epoch=epoch, launch=launch)

    def _watch(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Write and check the canary's words by what attention gets."""
        self._steps.append(list(batch.req_ids))
        rows = [
            Rows(
                self._ids,
                salts,
                batch.idx_mapping[: batch.num_reqs],
                batch.input_ids,
                batch.positions,
                batch.query_start_loc[: batch.num_reqs + 1],
            )
            for salts in self._salts
        ]
        groups = list(zip(self._canaries, rows, tables, slots, self.kinds, strict=True))
        for canary, own, _, taken, _ in groups:
            canary.write(own, taken)
        for canary, own, table, _, kind in groups:
            canary.check(own, table, entry=canary.words.shape[1], window=kind.size)
            canary.send()

    def _copied(self, pairs: Sequence[Any]) -> None:
        """Copy blocks of the shadow memory; the engine copies the canary's."""
        assert self.device is not None
        for pool in self.device.memory.pools:
            for layer in pool.layers:
                for source, target in pairs:
                    layer.words[target] = layer.words[source]

    def _sampled(self, hidden: Any, batch: Any, grammar: Any) -> Any:
        self._batch = batch
        try:
            return self._sample(hidden, batch, grammar)
        finally:
            self._batch = None

    def _computed(self, hidden: Any) -> Any:
        """Keep the logits, and make the drawn token of each row the greedy one."""
        logits, batch = self._compute(hidden), self._batch
        if batch is None:
            return logits
        positions = batch.positions[batch.logits_indices]
        self.logits.keep(batch, positions, logits)
        drawn = self._drawn[batch.expanded_idx_mapping, positions]
        return logits.scatter(1, drawn[:, None], GREEDY)
