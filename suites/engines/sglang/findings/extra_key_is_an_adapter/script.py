# ruff: noqa: T201, FBT003 - a plain script: it prints, and calls the engine as it is called
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a request of the base model whose extra_key is an adapter's id reads its cache.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from array import array

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"]()

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

set_global_server_args_for_scheduler(ServerArgs(model_path="none"))
allocator = TokenToKVPoolAllocator(64, torch.bfloat16, "cpu", None, False)
cache = UnifiedRadixCache(
    CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(4, 64, "cpu", False),
        token_to_kv_pool_allocator=allocator,
        page_size=1,
        tree_components=(ComponentType.FULL,),
    )
)
prompt = array("q", range(1, 10))
adapter = "9f6e2c41"
with_adapter = Req("a", "", prompt, SamplingParams(), lora_id=adapter)
base_model = Req("b", "", prompt, SamplingParams(), extra_key=adapter)
split = Req("c", "", prompt, SamplingParams(), extra_key=adapter[:4], lora_id=adapter[4:])

key = RadixKey(prompt, with_adapter.extra_key)
cache.insert(InsertParams(key=key, value=allocator.alloc(len(prompt))))
for name, req in (("base model", base_model), ("another key and adapter", split)):
    found = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, req.extra_key)))
    print(f"{name}: {found.device_prefix_len} tokens of the adapter's cache are hit")
    assert found.device_prefix_len == len(prompt)
