# ruff: noqa: E402 - packages are entered before anything of them is imported
# mypy: ignore-errors
# - engines are not typed, and scripts are read more than they are checked
"""Common code of the scripts about LMDeploy: its scheduler, no GPU, nothing of kvproof."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_without_gpu():
    """Enter packages whose __init__ starts the serving stack; paging needs none of it."""
    root = Path(importlib.util.find_spec("lmdeploy").submodule_search_locations[0])
    for name in ("lmdeploy", "lmdeploy.vl", "lmdeploy.pytorch.engine"):
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(root / Path(*name.split(".")[1:]))]
    names = ("PretrainedConfig", "AutoTokenizer", "AutoConfig", "PreTrainedTokenizer")
    names += ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "GenerationConfig")
    sys.modules["transformers"] = module = ModuleType("transformers")
    vars(module).update({name: type(name, (), {}) for name in names})
    agent = ModuleType("lmdeploy.pytorch.engine.model_agent")
    agent.BatchedOutputs = object
    sys.modules[agent.__name__] = agent


import_without_gpu()

import numpy as np
import torch
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging import Scheduler
from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

__all__ = ["UpdateTokenMode", "decode", "image", "make_scheduler", "prefill"]


def make_scheduler(*, block_size, blocks, checkpoints=0):
    """Schedule as the PyTorch engine does with prefix caching; lengths have no limit.

    `checkpoints`: the budget of a model with recurrent states, whose rows are counted as the
    executor does.
    """
    states = {
        "states_shapes": [((1,), torch.float32)],
        "num_state_caches": 8 + 2 + checkpoints,
        "prefix_cache_state_budget": checkpoints,
    }
    cache = CacheConfig(
        max_batches=8, block_size=block_size, num_cpu_blocks=0, num_gpu_blocks=blocks,
        max_prefill_token_num=1 << 20, enable_prefix_caching=True,
        **(states if checkpoints else {}),
    )  # fmt: skip
    return Scheduler(
        SchedulerConfig(max_batches=8, max_session_len=1 << 20),
        cache,
        seq_meta=SequenceMeta(block_size, strategy=ARSequenceStrategy()),
    )


def prefill(scheduler, session, tokens):
    """Compute a prompt with its states, in the order of the engine's loop (0.16 and later).

    Returns the sequence, its hit in tokens, and whether the state at its end was saved.
    """
    sequence = scheduler.add_session(session).add_sequence(np.array(tokens))
    assert scheduler.schedule(is_prefill=True).running == [sequence]
    scheduler.activate_seqs([sequence])
    hit, checkpoints = int(sequence.num_history_ids), scheduler.block_trie.state_checkpoints
    checkpoints.pin_restores([sequence])
    saved = checkpoints.reserve_save(sequence) >= 0
    checkpoints.publish_saves([sequence], pin_saves=True)
    checkpoints.unpin_restores([sequence])
    checkpoints.unpin_saves([sequence])
    return sequence, hit, saved


def decode(scheduler, sequence, tokens):
    """Generate these tokens, one with each step."""
    for token in tokens:
        sequence.set_step(sequence.num_all_ids)
        sequence.update_token_ids(np.array([token]), mode=UpdateTokenMode.INPUTS)
        scheduler.schedule_running([sequence])


def image(start, end):
    """One image in the tokens from start to end, as a prompt's `multimodals`."""
    from lmdeploy.pytorch.multimodal.data_type import MultiModalData

    data = MultiModalData(data=torch.empty(0), start=start, end=end, content_hash="9c1b")
    return {"image": [data]}
