# mypy: ignore-errors
# - engines are not typed, and scripts are read more than they are checked
"""Common code of the scripts about vLLM 0.33.0's ExampleConnector; nothing of kvproof."""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from tempfile import mkdtemp
from types import SimpleNamespace

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

BLOCK = 16
LAYER = "model.layers.0.self_attn.attn"


class Engine:
    """A connector, and the cache of one layer with one head of one number."""

    def __init__(self):
        transfer = KVTransferConfig(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": mkdtemp()},
        )
        config = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=BLOCK), kv_transfer_config=transfer
        )
        self.connector = ExampleConnector(config, KVConnectorRole.WORKER, None)
        self.cache = torch.zeros(32, 1, BLOCK, 1)

    def matched(self, prompt, computed=0):
        """Return how many tokens after those computed could be loaded."""
        request = SimpleNamespace(prompt_token_ids=prompt, mm_features=[])
        return self.connector.get_num_new_matched_tokens(request, computed)[0]

    def run(self, name, prompt, blocks, *, external=0):
        """Schedule a prompt in these blocks, load before its step, store after it."""
        self.connector.update_state_after_alloc(SimpleNamespace(request_id=name), None, external)
        new = SimpleNamespace(
            req_id=name, prompt_token_ids=prompt, mm_features=[], block_ids=(blocks,)
        )
        none = SimpleNamespace(req_ids=[])
        output = SimpleNamespace(scheduled_new_reqs=[new], scheduled_cached_reqs=none)
        self.connector.bind_connector_metadata(self.connector.build_connector_meta(output))
        layer = SimpleNamespace(kv_cache=self.cache)
        self.connector.start_load_kv(
            SimpleNamespace(attn_metadata={LAYER: None}, no_compile_layers={LAYER: layer})
        )
        self.connector.save_kv_layer(LAYER, self.cache, None)
