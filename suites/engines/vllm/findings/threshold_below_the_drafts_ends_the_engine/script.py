# ruff: noqa: T201, S102 - a plain script: it prints, and runs lines of the engine
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a request padded for its drafts is cut to the threshold, and the assertion fails.

Needs vllm, no GPU. The lines are those of `Scheduler.schedule`, from the padding to the cap.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import inspect
import textwrap
from types import SimpleNamespace

from vllm.v1.core.sched.scheduler import Scheduler

source = inspect.getsource(Scheduler.schedule)
first = source.index("                    # Pad new decode requests to uniform spec decoding size")
last = source.index("                    # chunked prefill has to be enabled explicitly", first)
assert "assert num_new_tokens == 1 + self.num_spec_tokens" in source[last:]

DRAFTS, THRESHOLD = 4, 2
state = {
    "self": SimpleNamespace(
        num_spec_tokens=DRAFTS,
        dynamic_sd_lookup=None,
        num_sampled_tokens_per_step=1,
        max_model_len=1024,
    ),
    "num_computed_tokens": 32,  # a prompt of 33 tokens, 32 of them are hit
    "num_new_tokens": 1,
    "prefill_scheduled": False,
    "scheduled_running_reqs": [],
    "request_token_budget": 64,
    "pad_spec_decode": False,
    "long_prefill_token_threshold": THRESHOLD,
}
lines = textwrap.dedent(source[first:last]).replace("break", "raise SystemExit('it is left out')")
exec(lines, state)
print("padded for its drafts:", state["pad_spec_decode"])
print("tokens that are scheduled:", state["num_new_tokens"], "and asserted:", 1 + DRAFTS)
assert state["pad_spec_decode"]
assert state["num_new_tokens"] == THRESHOLD != 1 + DRAFTS
