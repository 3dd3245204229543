# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: an engine with NixlConnector never starts if its side channel's port is taken.

Needs vllm, no GPU and no NIXL. The method is vLLM's; only the data that it reads are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import socket
import threading

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)

HOST, SECONDS = "127.0.0.1", 5


def starts(port):
    """Start a listener as EngineCore does; returns whether that ended within some seconds."""
    scheduler = NixlPullConnectorScheduler.__new__(NixlPullConnectorScheduler)
    scheduler._handshake_data = {}
    scheduler._nixl_handshake_listener_t = None
    scheduler._stop_event = threading.Event()
    scheduler.side_channel_host, scheduler.side_channel_port = HOST, port
    start = threading.Thread(target=scheduler.set_xfer_handshake_metadata, args=({},), daemon=True)
    start.start()
    start.join(SECONDS)
    scheduler._stop_event.set()
    return not start.is_alive(), scheduler._nixl_handshake_listener_t.is_alive()


with socket.socket() as other:
    other.bind((HOST, 0))
    other.listen()
    taken = other.getsockname()[1]
    ended, listens = starts(taken)
print(f"port taken: the start has {'ended' if ended else 'not ended'} after {SECONDS} s,")
print(f"and its listener {'lives' if listens else 'is dead'}")
assert not ended
assert not listens
ended, listens = starts(taken)
print(f"the same port, free: the start has {'ended' if ended else 'not ended'}")
assert ended
