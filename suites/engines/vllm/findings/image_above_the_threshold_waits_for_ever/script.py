# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: an image that must not be cut is never scheduled under a smaller threshold.

Needs vllm, no GPU. The function and the settings are vLLM's; the scheduler around it has one
request.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from types import SimpleNamespace

from vllm.config import SchedulerConfig
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.sched.scheduler import Scheduler

THRESHOLD = 2
settings = SchedulerConfig(
    max_model_len=1024,
    is_encoder_decoder=False,
    max_num_batched_tokens=64,
    max_num_seqs=2,
    long_prefill_token_threshold=THRESHOLD,
    disable_chunked_mm_input=True,
)
print("both settings are taken together")
image = MultiModalFeatureSpec(
    data=None,
    modality="image",
    identifier="cat",
    mm_position=PlaceholderRange(offset=10, length=20),
)
request = SimpleNamespace(has_encoder_inputs=True, mm_features=[image])
scheduler = SimpleNamespace(is_encoder_decoder=False, scheduler_config=settings)
# ten tokens before the image are computed; the step's share is the threshold
_, tokens, *_ = Scheduler._try_schedule_encoder_inputs(scheduler, request, 10, THRESHOLD, 64)
print("tokens of the request in this step, and in each one after it:", tokens)
assert tokens == 0
