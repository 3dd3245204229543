"""The batch of model runner V2: requests, tables and inputs are kept by vLLM's own code.

What its kernels compute on the device is computed when the launch is executed, in stream order:
positions, tokens, tables and slots of the rows that the shadow device checks come from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.worker.block_table import get_block_table_width
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.input_batch import InputBuffers, get_num_sampled_and_rejected
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler
from vllm.v1.worker.gpu.states import RequestState

from kvproof.harness.adapters.vllm_engine.v2 import kernels
from kvproof.harness.adapters.vllm_engine.v2.rows import BatchRows, Made, Owned
from kvproof.harness.contract.whole_engine import Span
from kvproof.harness.model.chain import FIRST_TOKEN
from kvproof.harness.whole_engine.device import Launch, ShadowDevice

_CPU = torch.device("cpu")


class _Absent:
    """Sampler, log-probabilities and model state: none of them has anything to keep here."""

    num_new_sampled_tokens_per_step = 1
    penalties_state = SimpleNamespace(output_bin_counts=None)

    def add_request(self, *_: Any) -> None: ...

    def remove_request(self, *_: Any) -> None: ...

    def apply_staged_writes(self) -> None: ...

    def postprocess_state(self, *_: Any) -> None: ...


class BatchV2(GPUModelRunner):  # type: ignore[misc] # the engine's class, untyped here
    """The host half of model runner V2, and its kernels on our device."""

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        specs: Sequence[Any],
        *,
        adapter_of: Callable[[Any], tuple[str, int]],
        media_of: Callable[[Sequence[Any]], tuple[Span, ...]],
    ) -> None:
        self.rows = BatchRows(self, adapter_of=adapter_of, media_of=media_of)
        # the runner's own __init__ wants a device and a model: its host half reads these
        kernels.install()
        scheduler = vllm_config.scheduler_config
        self.vllm_config, self.kv_cache_config = vllm_config, kv_cache_config
        self.model_config = vllm_config.model_config
        self.device = _CPU
        self.max_model_len = self.model_config.max_model_len
        self.max_num_reqs = scheduler.max_num_seqs
        self.max_num_tokens = scheduler.max_num_batched_tokens
        self.use_async_scheduling = bool(scheduler.async_scheduling)
        self.num_speculative_steps = vllm_config.num_speculative_tokens
        self.decode_query_len = self.num_speculative_steps + 1
        self.pooling_runner = self.pp_handler = self.pcp_manager = self.encoder_cache = None
        self.adaptive_verification = self.fast_prefill = None
        self.use_pp = self.is_first_pp_rank = False
        self.is_last_pp_rank = True
        self.sampler = self.prompt_logprobs_worker = self.model_state = _Absent()
        self.lora_state = LoraState(max_num_reqs=self.max_num_reqs)
        self.input_buffers = InputBuffers(self.max_num_reqs, self.max_num_tokens, _CPU)
        self.req_states = RequestState(
            max_num_reqs=self.max_num_reqs,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_tokens,
            num_speculative_steps=self.num_speculative_steps,
            vocab_size=self.model_config.get_vocab_size(),
            device=_CPU,
            num_prefill_lookahead=max(1, vllm_config.num_prefill_lookahead_tokens),
        )
        self.block_tables = self._block_tables(specs)
        self.handler = DraftTokensHandler.__new__(DraftTokensHandler)  # its __init__ wants streams
        self.names: list[str] = []
        self._to_draft = 0

    def _block_tables(self, specs: Sequence[Any]) -> Any:
        """Return the tables, as the runner's `initialize_kv_cache` makes them."""
        widths = [
            get_block_table_width(
                spec.max_num_blocks_per_req(self.vllm_config, self.max_model_len),
                spec.block_size,
                token_alignment=spec.block_table_token_alignment,
            )
            for spec in specs
        ]
        tables = BlockTables(
            block_sizes=[spec.block_size for spec in specs],
            max_num_reqs=self.max_num_reqs,
            max_num_batched_tokens=self.max_num_tokens,
            max_num_blocks_per_group=widths,
            device=_CPU,
            slot_mapping_enabled=[spec.uses_slot_mapping for spec in specs],
            dcp_sharded=[spec.dcp_sharded for spec in specs],
            sliding_window_reach=[
                spec.num_retained_tokens if isinstance(spec, SlidingWindowSpec) else 0
                for spec in specs
            ],
        )
        every = [each.gpu for each in tables.block_tables] + tables.input_block_tables
        kernels.LANGUAGE.tensors = {each.data_ptr(): each.numpy().reshape(-1) for each in every}
        return tables

    def held(self) -> int:
        """Count the requests that the worker has."""
        return len(self.req_states.req_id_to_index)

    def update(self, scheduler_output: Any) -> None:
        """Apply a scheduler output as `execute_model` does; kernels are queued."""
        host = replace(scheduler_output, kv_cache_block_copies=None, new_block_ids_to_zero=None)
        kernels.QUEUE.clear()
        kernels.Stream.open = True
        try:
            self.finish_requests(host)
            self.free_states(host)
            self._add(host)
            self.update_requests(host)
            self.block_tables.apply_staged_writes()
        finally:
            kernels.Stream.open = False

    def _add(self, output: Any) -> None:
        """Add requests; the rows of drafts are cleared after launches that still read them."""
        self.rows.arrived(output)
        drafts = self.req_states.draft_tokens
        self.req_states.draft_tokens = torch.zeros_like(drafts)
        self.add_requests(output)
        self.req_states.draft_tokens = drafts
        index = self.req_states.req_id_to_index
        names = [index[each.req_id] for each in output.scheduled_new_reqs]
        kernels.QUEUE.append(
            partial(drafts.index_fill_, 0, torch.tensor(names, dtype=torch.int64), 0)
        )

    def launch(
        self,
        device: ShadowDevice,
        output: Any,
        owned: Callable[[str], Owned],
        kernel_tables: Callable[[int, Any], Any],
        before: Sequence[Callable[[], None]],
    ) -> Launch:
        """Prepare inputs and tables as `execute_model` does, and launch them."""
        kernels.Stream.open = True
        try:
            state, _ = self.gather_batch_req_state(output, False)  # noqa: FBT003 - its signature
            batch = self.prepare_inputs(
                output, state, SimpleNamespace(num_tokens=0, num_reqs=None), 0
            )
            tables, slots = self.prepare_attn(batch)
        finally:
            kernels.Stream.open = False
        lengths = self.req_states.prefill_len.gpu.clone()  # as of this step, in stream order
        batch = replace(batch, query_start_loc=batch.query_start_loc.clone())
        self.names, self._to_draft = list(batch.req_ids), output.num_spec_tokens_to_schedule
        believed = self.rows.believed(batch, owned)
        made = Made.of(batch, tables, slots)
        actual = partial(self.rows.actual, device, believed, made, kernel_tables)
        queued = (*before, *kernels.QUEUE)
        kernels.QUEUE.clear()
        return device.launch(
            believed, queued, actual=actual, after=partial(self._after, device, batch, lengths)
        )

    def without_rows(self) -> list[Callable[[], None]]:
        """Return the kernels of a step that computes nothing."""
        queued, kernels.QUEUE[:] = list(kernels.QUEUE), []
        return queued

    def _after(
        self,
        device: ShadowDevice,
        batch: Any,
        lengths: Any,
        answers: Sequence[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """Book the sampled and drafted tokens on the device; return the answers for the host."""
        width = max([1, *map(len, answers)])
        tokens = torch.full((len(answers), width), -1, dtype=torch.int64)
        for at, each in enumerate(answers):
            # a chunk of a prompt samples a token, too, and it is discarded
            tokens[at, : max(1, len(each))] = torch.tensor(each or (FIRST_TOKEN,))
        sampled = torch.tensor([max(1, len(each)) for each in answers], dtype=torch.int32)
        sampled, rejected = get_num_sampled_and_rejected(
            sampled, batch.seq_lens, batch.cu_num_logits, batch.idx_mapping, lengths
        )
        self.postprocess_sampled(
            batch.idx_mapping, tokens, sampled, rejected, batch.query_start_loc
        )
        count = self.num_speculative_steps
        for name, index in zip(batch.req_ids, batch.idx_mapping_np, strict=True):
            drafts = device.drafts(name) if count else []
            padded = drafts + [FIRST_TOKEN] * (count - len(drafts))
            self.req_states.draft_tokens[int(index)] = torch.tensor(padded, dtype=torch.int64)
        pairs = zip(tokens.tolist(), sampled.tolist(), strict=True)
        return [tuple(each[:number]) for each, number in pairs]

    def keep(self, output: Any, sampled: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
        """Return the sampled tokens; the device has booked them."""
        del output
        return None if sampled is None else [list(each) for each in sampled]

    def take_drafts(self, device: ShadowDevice, launch: Launch) -> Any:
        """Return the host's view of the drafts: only how many there are."""
        del device, launch
        batch = SimpleNamespace(req_ids=self.names, has_structured_output_reqs=False)
        self.handler.set_draft_tokens(batch, torch.zeros(len(self.names), self._to_draft))
        return self.handler.get_draft_tokens()
