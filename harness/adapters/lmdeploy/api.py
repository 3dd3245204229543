"""The interface of LMDeploy that the adapter uses, and its drift.

The packages `lmdeploy`, `lmdeploy.vl` and `lmdeploy.pytorch.engine` are entered without their
`__init__`, which would import the serving stack; `transformers` and the model agent are empty:
paging only names their classes in annotations.

Engine environment only; `engine()` imports the engine. Module `releases` covers their differences.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, drift_of_calls, found_drift, refuse
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.target import TargetConfig

VERSIONS = ("0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.18.0")
MOST_REQUESTS = 64
"""Sequences that may run at once: more than any test case has."""

UNLIMITED = 1 << 30

_EMPTY = {
    "transformers": (
        "PretrainedConfig AutoTokenizer AutoConfig PreTrainedTokenizer PreTrainedTokenizerBase "
        "PreTrainedTokenizerFast GenerationConfig"
    ),
    "lmdeploy.pytorch.engine.model_agent": "BatchedOutputs",
}
"""Module -> classes in it that annotations name."""

_ENTERED = ("lmdeploy", "lmdeploy.vl", "lmdeploy.pytorch.engine")
"""Packages whose `__init__` does not run."""

_SIGNATURES = {
    "Scheduler.end_session": "self session_id",
    "Scheduler.add_session": "self session_id",
    "Scheduler.get_block_tables": "self seqs",
    "SchedulerSession.add_sequence": (
        "self token_ids sampling_param adapter_name multimodals input_embeddings "
        "migration_request resp_cache preserve_cache"
    ),
    "BlockTrie.match": "self seq",
    "BlockTrie.allocate": "self seq",
    "BlockTrie.evict": "self max_num_blocks",
    "LogicalAllocator.get_ref_count": "self blocks",
    "LogicalAllocator.get_physical_blocks": "self blocks",
}
"""Callable -> its parameters, in every release."""

_LATER_SIGNATURES = {
    (0, 15): {
        "Scheduler.schedule": (
            "self is_prefill prealloc_size allow_long_prefill prefer_long_prefill"
        ),
        "Scheduler.reserve_long_context_chunk": "self seq chunk_size prealloc_size is_last_chunk",
        "get_long_context_chunk_limit": "seq max_prefill_token_num",
    },
    (0, 16): {
        "Checkpoints.reserve_save": "self seq step is_decode",
        "Checkpoints.reserve_decode_save": "self seq interval step",
        "Checkpoints.pin_restore": "self seq",
        "Checkpoints.publish_saves": "self seqs pin_saves",
        "Checkpoints.unpin_restores": "self seqs",
        "Checkpoints.unpin_saves": "self seqs",
    },
    (0, 17): {"Scheduler.__init__": "self scheduler_config cache_config seq_meta kv_connector"},
}
"""Release -> the calls of the adapter from then on."""

_ACCEPTED = {
    "CacheConfig": (
        "max_batches block_size num_cpu_blocks num_gpu_blocks kernel_block_size "
        "max_prefill_token_num enable_prefix_caching num_reserved_gpu_blocks"
    ),
    "SchedulerConfig": "max_batches max_session_len",
    "MultiModalData": "data start end modality",
    "SequenceMeta": "block_size strategy",
}
"""Parameters of long signatures that the adapter passes."""

_LATER_ACCEPTED = {
    (0, 14): {
        "CacheConfig": (
            "num_state_caches prefix_cache_state_budget prefix_cache_decode_state_interval "
            "states_shapes"
        ),
        "SamplingParam": "return_routed_experts",
    },
    (0, 16): {"NodeStateCheckpoint": "slot step frozen_block_id published"},
}
"""Release -> the parameters that the adapter passes from then on."""

_ATTRIBUTES = {
    "scheduler": "block_trie block_manager state_manager cache_config seq_manager hanging waiting",
    "scheduler.block_trie": "leaves stats _roots",
    "scheduler.block_manager": "allocator num_gpu_blocks get_num_free_gpu_blocks",
    "sequence": (
        "num_all_ids num_history_ids num_token_ids logical_blocks logical_state history_cache "
        "state set_step update_token_ids _num_token_ids"
    ),
}
"""Attributes of engine objects that the adapter reads or sets."""


@cache
def version() -> str:
    """The installed release."""
    return importlib.metadata.version("lmdeploy").partition("+")[0]


@cache
def release() -> tuple[int, int]:
    """(major, minor) of the installed release."""
    major, minor = version().split(".")[:2]
    return int(major), int(minor)


class _Clock:
    """The time by which the engine stamps uses of blocks: whole seconds, one an operation."""

    seconds = 0

    def perf_counter(self) -> int:
        return self.seconds


_CLOCK = _Clock()
MOVED_CLOCK = (0, 18)
"""From here on blocks are stamped by `_CLOCK`; before, by the machine's clock."""


def tick() -> None:
    """Move the engine's clock: the uses of no two operations have the same time."""
    _CLOCK.seconds += 1


@cache
def engine() -> Any:
    """Everything used of LMDeploy, torch and numpy."""
    _enter()
    import numpy as np
    import torch
    from lmdeploy.pytorch import messages
    from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
    from lmdeploy.pytorch.engine import inputs_maker
    from lmdeploy.pytorch.multimodal.data_type import MultiModalData
    from lmdeploy.pytorch.paging import Scheduler
    from lmdeploy.pytorch.paging.block_manager import base_block_manager
    from lmdeploy.pytorch.paging.block_trie import BlockTrie
    from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

    if release() >= MOVED_CLOCK:
        base_block_manager.time = _CLOCK
    return SimpleNamespace(
        np=np,
        torch=torch,
        ARSequenceStrategy=ARSequenceStrategy,
        BlockTrie=BlockTrie,
        CacheConfig=CacheConfig,
        InputsMaker=inputs_maker.InputsMakerAsync,
        LogicalAllocator=base_block_manager.LogicalAllocator,
        MultiModalData=MultiModalData,
        Scheduler=Scheduler,
        SamplingParam=messages.SamplingParam,
        SchedulerConfig=SchedulerConfig,
        SchedulerSession=messages.SchedulerSession,
        SequenceMeta=messages.SequenceMeta,
        UpdateTokenMode=messages.UpdateTokenMode,
        pad_tables=inputs_maker._tensorlize_block_offsets,
        **_later(),
    )


def _later() -> dict[str, Any]:
    found: dict[str, Any] = {}
    if release() >= (0, 15):
        from lmdeploy.pytorch import long_context

        found["get_long_context_chunk_limit"] = long_context.get_long_context_chunk_limit
        found["plan_long_context_chunk"] = long_context.plan_long_context_chunk
    if release() >= (0, 16):
        from lmdeploy.pytorch.multimodal.data_type import ensure_multimodal_content_hashes
        from lmdeploy.pytorch.paging.block_trie import checkpoint_lifecycle

        found["ensure_multimodal_content_hashes"] = ensure_multimodal_content_hashes
        found["Checkpoints"] = checkpoint_lifecycle.StateCheckpointLifecycle
        found["NodeStateCheckpoint"] = checkpoint_lifecycle.NodeStateCheckpoint
    return found


def _enter() -> None:
    folder = _folder()
    for name in _ENTERED:
        module = ModuleType(name)
        module.__path__ = [str(folder / Path(*name.split(".")[1:]))]
        sys.modules[name] = module
    for name, classes in _EMPTY.items():
        module = ModuleType(name)
        for each in classes.split():
            setattr(module, each, type(each, (), {}))
        sys.modules[name] = module


def _folder() -> Path:
    spec = importlib.util.find_spec("lmdeploy")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("lmdeploy is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed LMDeploy and the expected interface."""
    return found_drift(version(), VERSIONS, engine, _compared)


def _compared(found: Any) -> tuple[Difference, ...]:
    signatures, accepted = dict(_SIGNATURES), dict(_ACCEPTED)
    for since, more in _LATER_SIGNATURES.items():
        signatures.update(more if release() >= since else {})
    for since, more in _LATER_ACCEPTED.items():
        for name, names in more.items() if release() >= since else ():
            accepted[name] = f"{accepted.get(name, '')} {names}"
    known = version() in VERSIONS
    calls = drift_of_calls(found, known=known, signatures=signatures, accepted=accepted)
    if any(each.blocks for each in calls):
        return calls
    return (*calls, *attribute_drift(_objects(), _ATTRIBUTES))


def _objects() -> SimpleNamespace:
    scheduler = new_scheduler(TargetConfig(num_blocks=3, block_size=2))
    sequence = scheduler.add_session(0).add_sequence(engine().np.array([0]))
    return SimpleNamespace(scheduler=scheduler, sequence=sequence)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("LMDeploy", differences())


def new_scheduler(config: TargetConfig, checkpoints: int = 1) -> Any:
    """The scheduler with its pool; block 0 is reserved, as the engine does for padding.

    `checkpoints`: most rows among the state rows for states that are kept.
    """
    names, states = engine(), _states(config, checkpoints)
    most = states.pop("max_batches", MOST_REQUESTS)
    cache_config = names.CacheConfig(
        max_batches=most,
        block_size=config.block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=config.num_blocks,
        kernel_block_size=config.layout[0].kernel_size,
        max_prefill_token_num=UNLIMITED,
        enable_prefix_caching=config.prefix_caching,
        num_reserved_gpu_blocks=1,
        **states,
    )
    return names.Scheduler(
        names.SchedulerConfig(max_batches=most, max_session_len=UNLIMITED),
        cache_config,
        seq_meta=names.SequenceMeta(config.block_size, strategy=names.ARSequenceStrategy()),
    )


def _states(config: TargetConfig, checkpoints: int) -> dict[str, Any]:
    """Rows as the executor counts them: those of requests, one reserved, one spare, the budget."""
    if not config.state_rows:
        return {}
    budget = max(0, min(checkpoints, config.state_rows - 3))
    return {
        "max_batches": max(1, config.state_rows - 2 - budget),
        "states_shapes": [((1,), engine().torch.float32)],
        "num_state_caches": config.state_rows,
        "prefix_cache_state_budget": budget,
        "prefix_cache_decode_state_interval": config.decode_interval,
    }


def expander(config: TargetConfig) -> Any:
    """The part of the input maker that turns padded tables of blocks into tables of pages."""
    ratio = config.block_size // config.layout[0].kernel_size
    maker = SimpleNamespace(
        kernel_blocks_per_kv=ratio, kernel_block_arange=engine().torch.arange(ratio)
    )
    return lambda tables: engine().InputsMaker._map_to_kernel_block_offsets(maker, tables)
