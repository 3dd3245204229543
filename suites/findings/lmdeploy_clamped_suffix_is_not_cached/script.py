# ruff: noqa: T201 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a prompt with an image is computed again and nothing of it is cached.

Its hit would end inside the image, so the blocks behind the image's begin are to be computed into
private ones. Making room for them evicts the cached blocks that they stand for; the walk that
enters the prompt into the trie then ends at the first of them.

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


def serve(session: int, question: int, length: int) -> int:
    """An image of 560 tokens and a question about it; returns the hit in tokens."""
    image = MultiModalData(data=torch.empty(0), start=40, end=600, content_hash="9c1b")
    tokens = np.arange(length)
    tokens[600:] += question * 100_000
    sequence = scheduler.add_session(session).add_sequence(tokens, multimodals={"image": [image]})
    assert scheduler.schedule(is_prefill=True).running == [sequence]
    hit = int(sequence.num_history_ids)
    scheduler.end_session(session)
    return hit


def kept() -> int:
    """Blocks that stay cached while nobody runs."""
    return 20 - scheduler.block_manager.get_num_free_gpu_blocks()


serve(1, question=1, length=640)
print("question 1 leaves", kept(), "blocks")
serve(2, question=2, length=896)
print("question 2, of 14 blocks, leaves", kept())
hit = serve(3, question=2, length=1000)
print("what follows on question 2 begins with its 896 tokens and hits", hit)
assert hit == 0
