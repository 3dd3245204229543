"""The worker's persistent batch, kept by vLLM's own code: `_update_states` of its model runner.

`InputBatch`, `BlockTable`, slot mappings and the bookkeeping of sampled tokens are the engine's;
only what would run on a device is ours. Model runner V1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.outputs import DraftTokenIds, SamplerOutput
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from kvproof.harness.adapters.vllm_engine import releases, states
from kvproof.harness.adapters.vllm_engine.requests import adapter_of, media_of, token_of
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.contract.whole_engine import OWN, Reads, Row
from kvproof.harness.model.chain import FIRST_TOKEN
from kvproof.harness.whole_engine.device import Launch, ShadowDevice
from kvproof.harness.whole_engine.findings import IllegalAccess

_CPU = torch.device("cpu")


class Batch(GPUModelRunner):  # type: ignore[misc] # the engine's class, untyped here
    """The host half of the model runner: requests, batch, tables."""

    uses_xdrope_dim = 0
    routed_experts_initialized = False
    rejection_sampler = RejectionSampler
    """The runner parses answers with drafts through this instance until 0.11."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, specs: Sequence[Any], sizes: Sequence[int]
    ) -> None:
        # the runner's own __init__ wants a device: its host half reads these attributes
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.speculative_config = vllm_config.speculative_config
        self.kv_cache_config = kv_cache_config
        self.device = _CPU
        self.max_model_len = self.model_config.max_model_len
        self.use_async_scheduling = bool(vllm_config.scheduler_config.async_scheduling)
        self.num_spec_tokens = releases.draft_count(vllm_config)
        self.use_async_spec_decode = self.use_async_scheduling and self.num_spec_tokens > 0
        self.is_pooling_model = self.uses_mrope = False
        self.enable_prompt_embeds = self.model_config.enable_prompt_embeds
        self.reorder_batch_threshold = None
        self._draft_token_ids = ()
        """Drafts are on the device; until 0.18 None means that there are none."""
        self.requests: dict[str, Any] = {}
        self.num_accepted_tokens_event: Any = None  # of hybrid models with drafts
        self.num_prompt_logprobs: dict[str, int] = {}
        self.encoder_cache: dict[str, Any] = {}
        self.kv_caches: list[Any] = []
        self.late_interaction_runner = _NoLateInteraction()
        scheduler = vllm_config.scheduler_config
        rows = scheduler.max_num_seqs
        self.prev_num_draft_tokens = _buffer(rows, torch.int32)
        self.discard_request_mask = _buffer(rows, torch.bool)
        self.discard_request_indices = _buffer(rows, torch.int64)
        self.input_batch = _input_batch(self, specs, sizes, rows, scheduler.max_num_batched_tokens)
        self._states = [isinstance(spec, MambaSpec) for spec in specs]
        self.states: states.States | None = None
        if any(self._states) and states.driven():
            groups = [group for group, state in enumerate(self._states) if state]
            self.states = states.States(
                self, groups, specs[groups[0]], lambda: _buffer(rows, torch.int64)
            )
        self.counts: Callable[[], Mapping[str, int]] = dict
        """Request -> tokens that the device sampled for it in the launch before."""

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        """Blocks are zeroed on the device, in stream order."""

    def _get_valid_sampled_token_count(self) -> list[int]:
        """Wait for the launch before, as the engine does where it corrects its counts."""
        if not self.use_async_spec_decode:
            return []
        counts = self.counts()
        order = self.input_batch.prev_req_id_to_index or {}
        found = [0] * (max(order.values(), default=-1) + 1)
        for request, index in order.items():
            found[index] = counts.get(request, 1)
        return found

    def _to_list(self, sampled_token_ids: Any) -> list[list[int]]:
        return releases.sampled(sampled_token_ids.tolist())

    def update(self, scheduler_output: Any) -> Callable[[], None] | None:
        """Apply a scheduler output, without the device's part; return a later correction."""
        host = replace(
            scheduler_output,
            **releases.having(
                scheduler_output, kv_cache_block_copies=None, new_block_ids_to_zero=None
            ),
        )
        correction: Callable[[], None] | None = self._update_states(host)
        self._optimistic = self.input_batch.num_computed_tokens_cpu
        if correction is not None and self.states is not None:
            # states are copied by counts that are right, samples discarded by those before
            self._optimistic = self._optimistic.copy()
            correction()
            return None
        return correction

    def held(self) -> int:
        """Count the requests that the worker has."""
        return len(self.requests)

    def without_rows(self) -> list[Callable[[], None]]:
        """Return the work on the device of a step that computes nothing."""
        if self.states is not None:
            self.states.skip()
        return []

    @property
    def names(self) -> list[str]:
        """Requests of the last launch, in order."""
        return list(self.input_batch.req_ids)

    def launch(
        self,
        device: ShadowDevice,
        output: Any,
        owned: Callable[[str], Sequence[Sequence[int]]],
        kernel_tables: Callable[[int, Any], Any],
        before: Sequence[Callable[[], None]],
    ) -> Launch:
        """Launch a step."""
        if self.states is None:
            return device.launch(self._rows(output, owned, kernel_tables), before)
        self.states.prepare(output)
        rows = self._rows(output, owned, kernel_tables)
        groups = range(len(self._states))
        tables = [[row.groups[group].table for row in rows] for group in groups]
        copies = [*before, *self.states.before(device, tables)]
        after = self.states.after(device, rows, tables) if self.num_spec_tokens else None
        return device.launch(rows, copies, after=after)

    def _rows(
        self,
        output: Any,
        owned: Callable[[str], Sequence[Sequence[int]]],
        kernel_tables: Callable[[int, Any], Any],
    ) -> list[Row]:
        """Return the rows of a launch; `kernel_tables` is the engine's own expansion by group."""
        batch = self.input_batch
        counts = np.array([output.num_scheduled_tokens[each] for each in batch.req_ids], np.int32)
        batch.block_table.commit_block_table(len(counts))
        starts = batch.num_computed_tokens_cpu[: len(counts)].astype(np.int64)
        self._map_slots(counts, starts)
        tables = [
            kernel_tables(group, table.get_device_tensor(len(counts))).numpy().astype(np.int64)
            for group, table in enumerate(batch.block_table.block_tables)
        ]
        drafts = output.scheduled_spec_decode_tokens
        fresh = {each.req_id for each in output.scheduled_new_reqs}
        fresh |= set(output.scheduled_cached_reqs.resumed_req_ids)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        found = []
        for index, name in enumerate(batch.req_ids):
            first, last = int(offsets[index]), int(offsets[index + 1])
            blocks = owned(name)
            groups = tuple(
                Reads(
                    tables[group][index],
                    _NONE if self._states[group] else _slots(table, first, last),
                    blocks[group] if group < len(blocks) else (),
                    *self._places(group, index, len(drafts.get(name, ()))),
                )
                for group, table in enumerate(batch.block_table.block_tables)
            )
            found.append(self._row(output, index, name, int(starts[index]), groups, fresh))
        return found

    def _places(self, group: int, index: int, drafts: int) -> tuple[Any, ...]:
        kept = self.states if self._states[group] else None
        return () if kept is None else kept.places(index, drafts)

    def _map_slots(self, counts: Any, starts: Any) -> None:
        query = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        at = np.concatenate([np.arange(n) + s for n, s in zip(counts, starts, strict=True)])
        releases.map_slots(self.input_batch.block_table, counts, query, at.astype(np.int64))

    def _row(
        self,
        output: Any,
        index: int,
        name: str,
        start: int,
        groups: tuple[Reads, ...],
        fresh: set[str],
    ) -> Row:
        batch, state = self.input_batch, self.requests[name]
        count = output.num_scheduled_tokens[name]
        if start < 0:
            raise IllegalAccess(f"{name} computes from position {start} on")
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        tokens = batch.token_ids_cpu[index, start : start + count].tolist()
        for offset in np.flatnonzero(~batch.is_token_ids[index, start : start + count]).tolist():
            tokens[offset] = self._embedded(index, start + offset)
        before = (batch.prev_req_id_to_index or {}).get(name)
        if before is not None and self.use_async_scheduling:
            tokens[count - 1 - drafts :] = [OWN] * (1 + drafts)
        # `discard_request_mask` of the runner's `_prepare_inputs`
        samples = self._optimistic[index] + count >= state.num_tokens
        self.discard_request_mask.np[index] = not samples
        corrected = self.use_async_spec_decode and before is not None
        return Row(
            request=name,
            start=start,
            tokens=tuple(tokens),
            drafts=drafts,
            samples=bool(samples),
            fresh=name in fresh,
            device_start=bool(corrected and self.prev_num_draft_tokens.np[before] > 0),
            adapter=adapter_of(state.lora_request),
            media=media_of(state.mm_features),
            groups=groups,
        )

    def _embedded(self, index: int, position: int) -> int:
        """Return the token whose embedding a row computes; OWN where it has none."""
        rows = self.input_batch.req_prompt_embeds.get(index, ())
        return token_of(rows[position]) if position < len(rows) else OWN

    def take_drafts(self, device: ShadowDevice, launch: Launch) -> Any:
        """Return the drafts that follow a launch."""
        rows = launch.rows
        return DraftTokenIds([row.request for row in rows], [_drafts(device, row) for row in rows])

    def keep(self, output: Any, sampled: Sequence[Sequence[int]] | None) -> list[list[int]]:
        """Book the sampled tokens, None while they are still on the device; return them."""
        width = max([1, *(len(each) for each in sampled or ())])
        tokens = torch.full((self.input_batch.num_reqs, width), -1, dtype=torch.int64)
        for index, each in enumerate(sampled or ()):
            # a chunk of a prompt samples a token, too, and it is discarded
            tokens[index, : max(1, len(each))] = torch.tensor(each or [0])
        self.input_batch.prev_sampled_token_ids = tokens if self.use_async_spec_decode else None
        self.valid_sampled_token_count_gpu = None
        discarded = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])
        self.discard_request_indices.np[: len(discarded)] = discarded  # until 0.11
        self.num_discarded_requests = len(discarded)
        booked = releases.accepted(
            self._bookkeeping_sync,
            scheduler_output=output,
            sampler_output=SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None),
            logits=None,
            hidden_states=torch.empty(0),
            num_scheduled_tokens=output.total_num_scheduled_tokens,
            spec_decode_metadata=None,
        )
        # its place differs between releases: it is the first list
        valid = next(each for each in booked if isinstance(each, list))
        return [list(map(int, each)) for each in valid]


def _drafts(device: ShadowDevice, row: Row) -> list[int]:
    """Return drafts; a draft model makes some after each chunk of a prompt, too."""
    drafts = RUNNING.config.drafts
    assert drafts is not None
    if not row.samples and drafts.method != "ngram":
        return [FIRST_TOKEN] * drafts.count
    return device.drafts(row.request)


def _buffer(size: int, dtype: Any) -> Any:
    return CpuGpuBuffer(size, dtype=dtype, device=_CPU, pin_memory=False)


def _input_batch(
    batch: Batch, specs: Sequence[Any], sizes: Sequence[int], rows: int, tokens: int
) -> Any:
    return releases.accepted(
        InputBatch,
        max_num_reqs=rows,
        max_model_len=batch.max_model_len,
        max_num_batched_tokens=tokens,
        device=_CPU,
        pin_memory=False,
        vocab_size=batch.model_config.get_vocab_size(),
        block_sizes=[spec.block_size for spec in specs],
        kernel_block_sizes=list(sizes),
        max_num_blocks_per_req=releases.widths(batch, specs),
        num_spec_tokens=batch.num_spec_tokens,
        num_speculative_tokens=batch.num_spec_tokens,
        is_spec_decode=batch.num_spec_tokens > 0,
        **releases.slot_mapping_modes(specs),
    )


_NONE = np.empty(0, np.int64)


def _slots(table: Any, first: int, last: int) -> Any:
    return table.slot_mapping.gpu[first:last].numpy().copy()


class _NoLateInteraction:
    """Of pooling models, which are not driven."""

    def on_requests_finished(self, requests: Any) -> None:
        """Nothing is kept."""

    def register_request(self, request: str, parameters: Any) -> None:
        """Nothing is kept."""
