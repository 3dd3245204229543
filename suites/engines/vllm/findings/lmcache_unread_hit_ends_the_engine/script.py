# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0 and LMCache 0.5.6: a hit that the scheduler does not use ends the engine.

Needs vllm and lmcache, no GPU: python script.py
"""

import os

os.environ["LMCACHE_LOG_LEVEL"] = os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"

from types import SimpleNamespace

from lmcache.integration.vllm.vllm_v1_adapter import (
    LMCacheConnectorV1Impl,
    LoadSpec,
    RequestTracker,
)

request = SimpleNamespace(
    request_id="r", num_tokens=40, num_computed_tokens=0, all_token_ids=list(range(40))
)
half = LMCacheConnectorV1Impl.__new__(LMCacheConnectorV1Impl)
half._manager = SimpleNamespace(lookup_client=SimpleNamespace(clear_lookup_status=lambda _: None))
half.kv_role, half.force_skip_save, half._requests_priority = "kv_both", False, {}
half._unfinished_requests = {}
half._request_trackers = {"r": RequestTracker("r", 40, list(range(40)), [1, 2, 3])}

# get_num_new_matched_tokens has found 32 tokens; the request may not read them
half.load_specs = {"r": LoadSpec(vllm_cached_tokens=0, lmcache_cached_tokens=32, can_load=False)}
half.update_state_after_alloc(request, 0)
goes_on = SimpleNamespace(req_ids=["r"], resumed_req_ids={"r"}, new_block_ids=[([4, 5, 6],)])
output = SimpleNamespace(
    finished_req_ids=set(),
    scheduled_new_reqs=[],
    scheduled_cached_reqs=goes_on,
    num_scheduled_tokens={"r": 40},
)
try:
    half.build_connector_meta(output)
except AssertionError as error:
    print("AssertionError:", error)
else:
    raise AssertionError("nothing was asserted")
