# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: the end of a load that is reported twice is an AssertionError.

Needs vllm, no GPU. `_update_from_kv_xfer_finished` is vLLM's; the scheduler around it has one
request, which runs when the second report comes.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from types import SimpleNamespace

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

request = SimpleNamespace(status=RequestStatus.WAITING_FOR_REMOTE_KVS)
scheduler = SimpleNamespace(
    connector=None,
    requests={"r": request},
    finished_recving_kv_req_ids=set(),
    _set_kv_fetch_stage=lambda *_: None,
)
report = KVConnectorOutput(finished_recving={"r"})
Scheduler._update_from_kv_xfer_finished(scheduler, report)
print("after the first report:", scheduler.finished_recving_kv_req_ids)
request.status = RequestStatus.RUNNING
try:
    Scheduler._update_from_kv_xfer_finished(scheduler, report)
except AssertionError as error:
    print("the second report: AssertionError", error)
else:
    raise SystemExit("the second report is passed over")
