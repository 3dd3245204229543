"""The part of LMDeploy that the adapter uses, and how it differs from what was expected.

The packages `lmdeploy`, `lmdeploy.vl` and `lmdeploy.pytorch.engine` are entered without their
`__init__`, which would import the serving stack; `transformers` and the model agent, of which
paging only names classes in annotations, are empty.

Imported in the engine's environment only; the engine itself is imported by `engine()`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, signature_drift
from kvproof.harness.target import TargetConfig

VERSIONS = ("0.17.0", "0.18.0")
"""The releases that this adapter was written for."""

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
    "Scheduler.__init__": "self scheduler_config cache_config seq_meta kv_connector",
    "Scheduler.add_session": "self session_id",
    "Scheduler.end_session": "self session_id",
    "Scheduler.schedule": ("self is_prefill prealloc_size allow_long_prefill prefer_long_prefill"),
    "Scheduler.reserve_long_context_chunk": ("self seq chunk_size prealloc_size is_last_chunk"),
    "Scheduler.get_block_tables": "self seqs",
    "SchedulerSession.add_sequence": (
        "self token_ids sampling_param adapter_name multimodals input_embeddings "
        "migration_request resp_cache preserve_cache"
    ),
    "BlockTrie.evict": "self max_num_blocks",
    "LogicalAllocator.get_ref_count": "self blocks",
    "LogicalAllocator.get_physical_blocks": "self blocks",
    "get_long_context_chunk_limit": "seq max_prefill_token_num",
}
"""What the adapter calls -> its parameters."""

_ACCEPTED = {
    "CacheConfig": (
        "max_batches block_size num_cpu_blocks num_gpu_blocks kernel_block_size "
        "max_prefill_token_num enable_prefix_caching num_reserved_gpu_blocks"
    ),
    "SchedulerConfig": "max_batches max_session_len",
    "MultiModalData": "data start end modality content_hash",
    "SequenceMeta": "block_size strategy",
}
"""Of long signatures, the parameters that the adapter passes."""

_ATTRIBUTES = {
    "scheduler": "block_trie block_manager cache_config seq_manager",
    "scheduler.block_trie": "leaves stats",
    "scheduler.block_manager": "allocator num_gpu_blocks get_num_free_gpu_blocks",
    "sequence": (
        "num_all_ids num_history_ids num_token_ids kv_token_limit logical_blocks history_cache "
        "prefix_cache.recompute_overlap.trie_block_map state set_step update_token_ids "
        "_num_token_ids"
    ),
}
"""What the adapter reads or sets on the engine's objects."""


@cache
def engine() -> Any:
    """Everything used of LMDeploy, torch and numpy."""
    _enter()
    import numpy as np
    import torch
    from lmdeploy.pytorch import messages
    from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
    from lmdeploy.pytorch.engine.inputs_maker import InputsMakerAsync
    from lmdeploy.pytorch.engine.inputs_maker import _tensorlize_block_offsets as pad_tables
    from lmdeploy.pytorch.long_context import (
        get_long_context_chunk_limit,
        plan_long_context_chunk,
    )
    from lmdeploy.pytorch.multimodal.data_type import MultiModalData
    from lmdeploy.pytorch.paging import Scheduler
    from lmdeploy.pytorch.paging.block_manager.base_block_manager import LogicalAllocator
    from lmdeploy.pytorch.paging.block_trie import BlockTrie
    from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

    return SimpleNamespace(
        np=np,
        torch=torch,
        ARSequenceStrategy=ARSequenceStrategy,
        BlockTrie=BlockTrie,
        CacheConfig=CacheConfig,
        InputsMaker=InputsMakerAsync,
        LogicalAllocator=LogicalAllocator,
        MultiModalData=MultiModalData,
        Scheduler=Scheduler,
        SchedulerConfig=SchedulerConfig,
        SchedulerSession=messages.SchedulerSession,
        SequenceMeta=messages.SequenceMeta,
        UpdateTokenMode=messages.UpdateTokenMode,
        get_long_context_chunk_limit=get_long_context_chunk_limit,
        pad_tables=pad_tables,
        plan_long_context_chunk=plan_long_context_chunk,
    )


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
    """Where the package lies. Raises ImportError."""
    spec = importlib.util.find_spec("lmdeploy")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("lmdeploy is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def version() -> str:
    """The installed release."""
    return importlib.metadata.version("lmdeploy")


@cache
def drift() -> tuple[str, ...]:
    """Differences between the installed LMDeploy and what this adapter was written for."""
    if version() not in VERSIONS:
        known = " and ".join(VERSIONS)
        return (f"version {version()} is installed, the adapter was written for {known}",)
    try:
        found = engine()
    except ImportError as error:
        return (str(error),)
    return (
        *signature_drift(found, _SIGNATURES, _ACCEPTED),
        *attribute_drift(_objects(), _ATTRIBUTES),
    )


def _objects() -> SimpleNamespace:
    """A scheduler and a sequence, to be looked at."""
    scheduler = new_scheduler(TargetConfig(num_blocks=3, block_size=2))
    sequence = scheduler.add_session(0).add_sequence(engine().np.array([0]))
    return SimpleNamespace(scheduler=scheduler, sequence=sequence)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    if differences := drift():
        raise RuntimeError(f"LMDeploy is not what the adapter expects: {'; '.join(differences)}")


def new_scheduler(config: TargetConfig) -> Any:
    """The scheduler with its pool; block 0 is reserved, as the engine does for padding."""
    names = engine()
    cache_config = names.CacheConfig(
        max_batches=MOST_REQUESTS,
        block_size=config.block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=config.num_blocks,
        kernel_block_size=config.kernel_size,
        max_prefill_token_num=UNLIMITED,
        enable_prefix_caching=config.prefix_caching,
        num_reserved_gpu_blocks=1,
    )
    return names.Scheduler(
        names.SchedulerConfig(max_batches=MOST_REQUESTS, max_session_len=UNLIMITED),
        cache_config,
        seq_meta=names.SequenceMeta(config.block_size, strategy=names.ARSequenceStrategy()),
    )


def expander(config: TargetConfig) -> Any:
    """The part of the input maker that turns padded tables of blocks into tables of pages."""
    ratio = config.block_size // config.kernel_size
    maker = SimpleNamespace(
        kernel_blocks_per_kv=ratio, kernel_block_arange=engine().torch.arange(ratio)
    )
    return lambda tables: engine().InputsMaker._map_to_kernel_block_offsets(maker, tables)
