# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a host in `page_head` with `direct` copies starts, and the first copy ends it.

Needs sglang, no GPU: streams are stood in for. In the environment that `kvproof targets install
sglang==0.5.23` builds, some packages of it are missing:
python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, make_cache
from sglang_plain_host import attach

# isort: split
import torch
from sglang.srt.arg_groups.hicache_hook import resolve_layout_io_compatibility
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_memory
from sglang.srt.server_args import ServerArgs

CHOSEN = {"hicache_io_backend": "direct", "hicache_mem_layout": "page_head"}
SLOTS = 8 * PAGE

arguments = ServerArgs(model_path="none", enable_hierarchical_cache=True, **CHOSEN)
resolve_layout_io_compatibility(arguments)
taken = {name: getattr(resolved_view(arguments), name) for name in CHOSEN}
print(f"the server's arguments are neither refused nor changed: {taken}")
assert taken == CHOSEN

make_cache(pages=2, states=20)  # publishes the arguments of a server
memory = MHATokenToKVPool(SLOTS, PAGE, torch.bfloat16, 1, 8, 1, "cpu", enable_memory_saver=False)
parameters = CacheInitParams(
    disable=False,
    req_to_token_pool=ReqToTokenPool(4, SLOTS, "cpu", enable_memory_saver=False),
    token_to_kv_pool_allocator=PagedTokenToKVPoolAllocator(
        SLOTS, PAGE, torch.bfloat16, "cpu", memory, need_sort=False
    ),
    page_size=PAGE,
    tree_components=(ComponentType.FULL,),
)
cache = UnifiedRadixCache(parameters)
with get_memory().override(**CHOSEN):
    attach(cache, parameters, policy="write_through")
print(f"the host pool is there, in layout {cache.cache_controller.mem_pool_host.layout}")
try:
    cache.cache_controller.write(torch.arange(PAGE, 2 * PAGE))
except ValueError as error:
    print(f"the first page that is copied to the host ends the scheduler: {error}")
else:
    raise SystemExit("no copy ended it")
