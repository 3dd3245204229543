# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a prompt that does not fit empties the prefix cache on every turn that it waits.

Needs lmdeploy alone, no GPU: python script.py
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_without_gpu() -> None:
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

import numpy as np  # noqa: E402
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig  # noqa: E402
from lmdeploy.pytorch.messages import SequenceMeta  # noqa: E402
from lmdeploy.pytorch.paging import Scheduler  # noqa: E402
from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy  # noqa: E402

BLOCK = 64
cache = CacheConfig(
    max_batches=8, block_size=BLOCK, num_cpu_blocks=0, num_gpu_blocks=20,
    max_prefill_token_num=1 << 20, enable_prefix_caching=True,
)  # fmt: skip
scheduler = Scheduler(
    SchedulerConfig(max_batches=8, max_session_len=1 << 20),
    cache,
    seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
)


def arrive(session: int, first: int, blocks: int):
    """A request of so many blocks."""
    tokens = np.arange(first, first + blocks * BLOCK)
    return scheduler.add_session(session).add_sequence(tokens)


system_prompt = arrive(1, 0, 8)
scheduler.schedule(is_prefill=True)
scheduler.end_session(1)
running = arrive(2, 10_000, 10)
scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
free = scheduler.block_manager.get_num_free_gpu_blocks()
print("cached before:", 20 - free - running.num_blocks, "blocks")

waiting = arrive(3, 20_000, 12)
assert scheduler.schedule(is_prefill=True).running == [], "it does not fit beside the running one"
print("free after a turn in which nothing was admitted:",
      scheduler.block_manager.get_num_free_gpu_blocks(), "of 20")  # fmt: skip

scheduler.end_session(3)
again = arrive(4, 0, 8)
scheduler.schedule(is_prefill=True)
print("the system prompt hits", again.num_history_ids, "tokens; it was cached with", 8 * BLOCK)
assert again.num_history_ids == 0
