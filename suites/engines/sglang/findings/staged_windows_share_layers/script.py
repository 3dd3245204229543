# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: two pipeline stages of a model with windows send to the same layers.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"](more=["prometheus_client"])

import torch
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.disaggregation.prefill import _transfer_start_layer
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

set_global_server_args_for_scheduler(ServerArgs(model_path="none", page_size=4))


def pool(full, windows):
    """Return the pool of some layers."""
    return SWAKVPool(
        size=8, size_swa=8, page_size=4, dtype=torch.bfloat16, head_num=1, head_dim=4,
        full_attention_layer_ids=full, swa_attention_layer_ids=windows, device="cpu",
    )  # fmt: skip


decode, reached = pool([0, 2], [1, 3]), []
for full, windows in ([0], [1]), ([2], [3]):
    stage = pool(full, windows)
    start = _transfer_start_layer(pool=stage, hf_text_config=None)
    manager = SimpleNamespace(kv_args=SimpleNamespace(prefill_start_layer=start))
    own, theirs = (each.get_contiguous_buf_infos()[0] for each in (stage, decode))
    keys = CommonKVManager.get_mha_kv_ptrs_with_pp(manager, own, theirs)[2]
    reached.append(theirs.index(keys[0]))
    print(f"layer {full[0]} goes to the layer {[0, 2][reached[-1]]} of the decoding side")
if reached == [0, 1]:
    raise SystemExit("each stage writes its own layers")
