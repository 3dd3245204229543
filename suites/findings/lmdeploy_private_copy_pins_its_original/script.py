# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: blocks that nobody holds stay while a request runs on copies of them.

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
import torch  # noqa: E402
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig  # noqa: E402
from lmdeploy.pytorch.messages import SequenceMeta  # noqa: E402
from lmdeploy.pytorch.multimodal.data_type import MultiModalData  # noqa: E402
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


def arrive(session: int, blocks: int, question: int):
    """An image of 560 tokens and a question about it; 0: only text."""
    image = MultiModalData(data=torch.empty(0), start=40, end=600, content_hash="9c1b")
    tokens = np.arange(blocks * BLOCK) + (0 if question else 500_000)
    tokens[600:] += question * 100_000
    media = {"image": [image]} if question else None
    return scheduler.add_session(session).add_sequence(tokens, multimodals=media)


arrive(1, blocks=10, question=1)
scheduler.schedule(is_prefill=True)
scheduler.end_session(1)
running = arrive(2, blocks=10, question=2)
scheduler.activate_seqs(scheduler.schedule(is_prefill=True).running)
assert running.num_blocks == 10
waiting = arrive(3, blocks=9, question=0)
admitted = scheduler.schedule(is_prefill=True).running == [waiting]
print("10 of 20 blocks are held; a request of 9 blocks runs:", admitted)
assert not admitted
