"""LMCache under vLLM's LMCacheConnectorV1: its own engine, look-up server and memory, on a CPU.

LMCache refuses to move pages on a CPU (`CreateGPUConnector`), and its functions in torch do not
know this release's pages. So its `VLLMPagedMemGPUConnectorV2`, the one that is used on a GPU, gets
streams and a copying kernel of ours. Everything else is LMCache's: adapter, keys, look-up over its
socket, memory, eviction.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvproof.harness.adapters.vllm_engine.stores.noted import note_filled
from kvproof.harness.contract.whole_engine import Refused
from kvproof.harness.whole_engine.device import ShadowDevice

_LOCK = Path(__file__).parents[3] / "locks" / "more" / "lmcache-0.5.6.txt"
MISSING = "LMCache is not installed beside vLLM"
CHUNK = 16
"""Tokens of an object, as many as a block has."""
_GIGABYTES = 0.0001
"""So small that objects are evicted."""


def refused() -> str:
    """Say which package is missing in the engine's environment; empty: none."""
    if find_spec("lmcache") is not None:
        return ""
    return f"{MISSING}: {sys.executable} -m pip install --no-deps -r {_LOCK}"


class _Running:
    """The engine that runs (`running.Running`): LMCache's classes take no argument of ours."""

    now: Any = None


class LMCacheStore:
    """LMCache for one engine; its parts are globals of the process, which `close` forgets."""

    def __init__(self, running: Any) -> None:
        """Raise Refused where the engine's environment has no LMCache."""
        if lacking := refused():
            raise Refused(lacking)
        _Running.now = running
        os.environ |= {"LMCACHE_LOG_LEVEL": "CRITICAL", "LMCACHE_DISABLE_BANNER": "1"}
        os.environ["LMCACHE_TRACK_USAGE"] = "false"

    @staticmethod
    def settings() -> dict[str, Any]:
        """Return the configuration of LMCacheConnectorV1."""
        extra = {
            "lmcache.chunk_size": CHUNK,
            "lmcache.local_cpu": True,
            "lmcache.max_local_cpu_size": _GIGABYTES,
        }
        return {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": extra}

    @staticmethod
    def seen(cache: Any, device: ShadowDevice) -> Any:
        """Return a layer's cache as the connector gets it."""
        del device
        return cache

    @staticmethod
    def install() -> None:
        """Replace the functions that LMCache takes from a GPU, before its parts are made."""
        _stand_in()

    def before_step(self, device: ShadowDevice) -> None:
        """Lose objects by the pattern of this step, less those that a look-up has promised."""
        from lmcache.integration.vllm import utils
        from lmcache.v1.cache_engine import LMCacheEngineBuilder

        memory = LMCacheEngineBuilder.get(utils.ENGINE_NAME).storage_manager.local_cpu_backend
        free = [key for key, each in memory.hot_cache.items() if each.can_evict]
        for at in device.losses.pick(len(free)):
            memory.remove(free[at])
            device.findings.saw("a store loses a prompt")

    def close(self, *connectors: Any) -> None:
        """Forget LMCache's parts.

        Its own shutdown waits a second for each thread, and closes sockets that threads still use.
        """
        from lmcache.integration.vllm import utils
        from lmcache.v1.cache_engine import LMCacheEngineBuilder

        for each in connectors:
            manager = each._lmcache_engine._manager
            if manager.lookup_server is not None:
                manager.lookup_server.running = False
            if manager.lookup_client is not None:
                for socket in manager.lookup_client.transport.sockets:
                    socket.close(linger=0)
        LMCacheEngineBuilder.destroy(utils.ENGINE_NAME)
        utils._config_instance = None


class _Stream:
    """A stream of copies. Both directions first copy the slots to the device.

    That copy waits for the compute stream, and so does all that follows it.
    """

    def synchronize(self) -> None:
        """Copies run at once."""


class _Cuda:
    Stream = _Stream

    @staticmethod
    @contextmanager
    def stream(_: _Stream) -> Iterator[None]:
        device = _Running.now.worker.device_of
        device.complete(device.submitted)
        yield


class _Torch:
    """`torch` as LMCache's connector for GPUs sees it."""

    cuda = _Cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _stand_in() -> None:
    from lmcache.integration.vllm.vllm_service_factory import VllmServiceFactory
    from lmcache.v1 import gpu_connector
    from lmcache.v1.gpu_connector import gpu_connectors

    class Connector(gpu_connectors.VLLMPagedMemGPUConnectorV2):  # type: ignore[misc] # untyped here
        """LMCache's own, but for its first look at the caches, which insists on a GPU."""

        def _initialize_pointers(self, kv_caches: Any) -> Any:
            self.device, self.block_size = torch.device("cpu"), _Running.now.config.block_size
            self.page_buffer_size = self.head_size = self.block_stride_elems = 0
            self.engine_kv_format = None
            return torch.tensor([each.data_ptr() for each in kv_caches])

    def create(config: Any, metadata: Any, engine: Any, layout_hints: Any = None) -> Any:
        del engine
        buffered = gpu_connector.need_gpu_interm_buffer(config)
        return Connector.from_metadata(
            metadata, buffered, torch.device("cpu"), layout_hints=layout_hints
        )

    gpu_connectors.torch, gpu_connectors.device_ops = _Torch(), _Ops
    gpu_connector.CreateGPUConnector = create
    VllmServiceFactory.maybe_create_offload_server = lambda _: None


class _Ops:
    """The kernel that moves tokens between pages and an object."""

    @staticmethod
    def multi_layer_kv_transfer(
        object_: Any,
        pointers: Any,
        slots: Any,
        device: Any,
        page_buffer_size: int,
        direction: Any,
        kv_format: Any,
        *,
        block_size: int,
        head_size: int,
        block_stride_elems: int,
        skip_prefix_n_tokens: int = 0,
    ) -> None:
        """Move tokens whose slot is not negative, less those that are skipped."""
        del device, page_buffer_size, kv_format, head_size, block_stride_elems
        from lmcache.lmcache_native import TransferDirection

        loads = direction == TransferDirection.H2D
        chosen = slots >= 0
        chosen[:skip_prefix_n_tokens] = False
        at = slots[chosen]
        place = at // block_size, slice(None), at % block_size
        caches = {each.data_ptr(): each for each in _Running.now.worker.caches.values()}
        kind = "loaded from" if loads else "stored in"
        _Running.now.findings.saw(f"blocks are {kind} another tier", len(at))
        if loads:
            note_filled(_Running.now.worker.device_of, place[0])
        for layer, pointer in enumerate(map(int, pointers)):
            cache = caches[pointer]
            heads, both = cache.shape[1::2]
            if loads:
                tokens = object_[:, layer, chosen].view(2, len(at), heads, both // 2)
                cache[place] = tokens.permute(1, 2, 0, 3).flatten(2)
            else:
                tokens = cache[place].view(len(at), heads, 2, both // 2)
                object_[:, layer, chosen] = tokens.permute(2, 0, 1, 3).flatten(2)
