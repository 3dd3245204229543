# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: with unequal tensor-parallel sizes a repeated message counts for another worker's.

Needs vllm, no GPU and no NIXL. `_get_new_notifs` of both connectors is vLLM's; only the data that
it reads are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import queue
from collections import defaultdict
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats


def made(kind, **values):
    """Return an object of a class with these attributes and no start-up."""
    instance = kind.__new__(kind)
    vars(instance).update(
        transfer_topo=SimpleNamespace(),
        consumer_notification_counts_by_req=defaultdict(int),
        expected_consumer_notifications_by_req={},
        xfer_stats=NixlKVConnectorStats(),
        **values,
    )
    return instance


# two workers decode, one has prefilled: it must wait for both, and the first one's message is twice
messages = {"first worker that decodes": [b"r:2", b"r:2"]}
sender = made(
    NixlPullConnectorWorker,
    nixl_wrapper=SimpleNamespace(get_new_notifs=lambda: messages),
    _reqs_to_send={"r": float("inf")},
    _reqs_to_process={"r"},
)
done = sender._get_new_notifs()
print("pull: the second worker still reads; blocks that are given back:", done)
assert done == {"r"}

# two workers have prefilled, one decodes: it must wait for the writes of both
completions = queue.Queue()
for message in (b"r:2", b"r:2"):
    completions.put(message)
receiver = made(
    NixlPushConnectorWorker,
    _pending_completion_notifs=completions,
    _recving_metadata={"r": SimpleNamespace(pp_size=1)},
    _recving_transfers={},
    world_size=1,
)
receiver._get_new_notifs()
print(
    "push: the second worker still writes; loads that have ended:",
    list(receiver._recving_transfers),
)
assert list(receiver._recving_transfers) == ["r"]
