# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: ExampleConnector serves another salt, and blocks that a reset had to drop.

Needs vllm, no GPU: python script.py
"""

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[1]))
from vllm.v1.core.sched.scheduler import Scheduler
from vllm_example_plain import BLOCK, Engine

engine = Engine()
prompt = list(range(2 * BLOCK + 5))
engine.run("of one tenant", prompt, [1, 2, 3])

other = SimpleNamespace(
    prompt_token_ids=prompt, mm_features=[], cache_salt="another tenant", lora_request="another"
)
matched = engine.connector.get_num_new_matched_tokens(other, 0)[0]
print("tokens that another tenant's request, with another adapter, can load:", matched)
assert matched == 2 * BLOCK

scheduler = SimpleNamespace(connector=engine.connector, log_stats=False)
done = Scheduler.reset_connector_cache(scheduler)
matched = engine.matched(prompt)
print("the connector's reset is reported as done:", done)
print("tokens from before it that can be loaded:", matched)
assert done
assert matched == 2 * BLOCK
