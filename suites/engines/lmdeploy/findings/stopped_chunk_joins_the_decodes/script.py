# ruff: noqa: E402, T201 - a plain script: it prints, and enters packages before it imports them
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMDeploy 0.18.0: a long prompt cancelled between two chunks ends the engine at the next request.

Needs lmdeploy alone, no GPU: python script.py
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmdeploy_plain import make_scheduler

grammars = sys.modules.setdefault("xgrammar", ModuleType("xgrammar"))  # no output is guided
vars(grammars).update(dict.fromkeys(("GrammarMatcher", "CompiledGrammar"), object))
from lmdeploy.pytorch.disagg.config import EngineRole
from lmdeploy.pytorch.engine.inputs_maker import InputsMakerAsync, InputsMakerConfig
from lmdeploy.pytorch.messages import SamplingParam
from lmdeploy.pytorch.strategies.ar import ARStrategyFactory

CHUNK = 32
scheduler = make_scheduler(block_size=16, blocks=40)
scheduler.cache_config.max_prefill_token_num = CHUNK
factory = ARStrategyFactory(SimpleNamespace(bos_token_id=1))
maker = InputsMakerAsync(
    executor=SimpleNamespace(device_type="cuda"),
    scheduler=scheduler,
    state_checkpoints=scheduler.state_checkpoints,
    adapter_manager=SimpleNamespace(num_adapters=lambda: 1),
    engine_strategy=factory.build_engine_strategy(
        scheduler.cache_config, scheduler.scheduler_config
    ),
    sampling_strategy=factory.build_sampling_strategy(),
    model_agent_strategy=factory.build_model_agent_strategy(),
    config=InputsMakerConfig(
        max_batches=8, max_prefill_token_num=CHUNK, role=EngineRole.Hybrid,
        block_size=16, kernel_block_size=16,
        window_size=-1, enable_prefix_caching=True, prefix_cache_decode_state_interval=0,
    ),
)  # fmt: skip
steps = factory.build_step_inputs()  # of the model agent: no request has decoded yet


def arrive(session: int, tokens: int):
    """A request of so many tokens."""
    prompt = np.arange(session * 1000, session * 1000 + tokens)
    scheduler.add_session(session).add_sequence(prompt, sampling_param=SamplingParam())


arrive(1, 4 * CHUNK)
first = maker._make_forward_inputs(prefill=True)
scheduler.activate_seqs(first["running"])
maker.update_running_seqs(first["running"], first["inputs"])
second = maker._make_forward_inputs(prefill=False)  # the loop prefetches while the first one runs

scheduler.stop_session(1)  # its client has gone
maker.has_pending_long_context_chunk()  # the loop looks for work
scheduler.activate_seqs(second["running"])
maker.update_running_seqs(second["running"], second["inputs"])
print("decodes:", [seq.status.name for seq in maker.running_seqs])
assert [seq.status.name for seq in maker.running_seqs] == ["STOPPED"]

arrive(2, CHUNK)
forward = maker._make_forward_inputs(prefill=True)
forward["delta"] = forward["delta"].to_device("cpu")
try:
    steps.reindex(forward["delta"])  # as BaseModelAgent._prepare_inputs_prefill does
except AttributeError as error:
    print("the model agent ends:", error)
else:
    raise AssertionError("the model agent goes on")
