# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: peers that are not served are accepted, and the refusal ends the transfer worker.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"](more=["prometheus_client"])

from sglang.srt.disaggregation.base.conn import StateType
from sglang.srt.disaggregation.common import conn

info = {
    "attn_tp_size": 2, "attn_cp_size": 1, "dp_size": 1, "pp_size": 2, "page_size": 4,
    "kv_cache_dtype": "bfloat16", "follow_bootstrap_room": True,
}  # fmt: skip
conn.requests = SimpleNamespace(
    get=lambda *_, **__: SimpleNamespace(status_code=200, json=lambda: info)
)
arguments = SimpleNamespace(page_size=4, state_types=[StateType.SWA], engine_rank=0)
decode = conn.CommonKVManager.__new__(conn.CommonKVManager)
vars(decode).update(
    kv_args=arguments, kv_cache_dtype_str="bfloat16", is_mla_backend=False,
    is_hybrid_mla_backend=False, attn_tp_size=1, attn_cp_size=1, attn_cp_rank=0, pp_size=1,
    pp_rank=0, dcp_size=1, enable_all_cp_ranks_for_transfer=False, prefill_info_table={},
)  # fmt: skip
accepted = decode.try_ensure_parallel_info("prefill:1")
print("the peers are connected:", accepted)

prefill = conn.CommonKVManager.__new__(conn.CommonKVManager)
prefill.pp_size = 2
try:
    prefill._get_mha_head_slice_blocks([], [], [], [], [], [], 1, 0)
except RuntimeError as error:
    print("the first prompt:", error)
if not accepted:
    raise SystemExit("the peers are refused before the first prompt")
