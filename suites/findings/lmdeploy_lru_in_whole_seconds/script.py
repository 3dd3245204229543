# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: blocks used within one second are evicted in the order of memory addresses.

Needs lmdeploy alone, no GPU: python script.py
"""

import importlib.util
import sys
import time
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

BLOCK = 16


def wrong_victims(pause: float, prompts: int = 16) -> int:
    """How many of the 8 prompts used last are evicted while older ones stay."""
    cache = CacheConfig(
        max_batches=8, block_size=BLOCK, num_cpu_blocks=0, num_gpu_blocks=64,
        max_prefill_token_num=1 << 20, enable_prefix_caching=True,
    )  # fmt: skip
    scheduler = Scheduler(
        SchedulerConfig(max_batches=8, max_session_len=1 << 20),
        cache,
        seq_meta=SequenceMeta(BLOCK, strategy=ARSequenceStrategy()),
    )

    def serve(session: int, prompt: int) -> int:
        tokens = np.arange(1000 * prompt, 1000 * prompt + BLOCK + 1)
        sequence = scheduler.add_session(session).add_sequence(tokens)
        scheduler.schedule(is_prefill=True)
        hit = sequence.num_history_ids
        scheduler.end_session(session)
        return hit

    for prompt in range(prompts):
        serve(prompt, prompt)
    time.sleep(pause)
    recent = range(0, prompts, 2)
    for prompt in recent:
        assert serve(100 + prompt, prompt) == BLOCK, "it is used again"
    assert scheduler.block_trie.evict(prompts // 2) == prompts // 2
    return sum(serve(200 + prompt, prompt) == 0 for prompt in recent)


while time.perf_counter() % 1 > 0.2:  # begin early in a second
    time.sleep(0.01)
within = wrong_victims(pause=0)
apart = wrong_victims(pause=1.1)
print(f"used again in the same second: {within} of 8 recently used prompts were evicted")
print(f"used again more than a second later: {apart} of 8")
assert within > 0 == apart
