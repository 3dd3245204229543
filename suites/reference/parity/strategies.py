"""The suite `parity`: forwards of a real model with forced experts (R4).

The other levels need no drawn histories: `python -m kvproof.suites.tests.lab.parity`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.property import table

if TYPE_CHECKING:
    from kvproof.suites.reference.parity.forced_routing import ForcedRoutingMachine

PROPERTIES = table(
    vars(),
    """
forced_experts_are_used | R4
    each layer uses the experts that the request forces, token by token
    why: a replay for training runs through other experts than it was given
    - other experts than the model's are forced
    - the forced rows end inside a step
a_replay_gives_the_recorded_logits | R4
    a request with the recorded experts of an equal one gets its logits and tokens
    why: log-probabilities in training differ from those of the rollout, and learning is biased
    - a replay in several steps
    - a replay after a hit
    - a replay of generated tokens
a_replay_ends_with_its_rows | R4
    after the last forced row the model chooses for itself again
    why: text generated after a replay is stuck with the last recorded experts
    - the forced rows end inside a step
    - the forced rows end with a step
a_replay_is_of_one_request_only | R4
    requests in one batch with a forced one choose as they do alone
    why: one training replay changes the answers of normal users in the same batch
    - a forced request in one batch with another
""",
)
FAMILIES = ("qwen3_moe", "deepseek_v3", "gpt_oss")
"""Softmax; sigmoid with groups and a shared expert; softmax of the chosen, with biases."""
MOST = 3
"""Most requests, or pairs of them, in a history: each is a dozen forwards."""


def missing() -> str:
    """Return the missing packages."""
    gone = [name for name in ("torch", "transformers") if find_spec(name) is None]
    return f"needs {' and '.join(gone)}: pip install 'kvproof[hf]'" if gone else ""


def _draw_config(draw: Draw) -> Config:
    return {
        "family": draw(st.sampled_from(FAMILIES)),
        "mode": draw(st.sampled_from(("exact", "batched", "invariant"))),
        "chunk": draw(st.sampled_from((4, 8))),
    }


def _draw_operation(machine: ForcedRoutingMachine, draw: Draw) -> tuple[str, Arguments]:
    if len(machine.operations) == MOST:
        return "rest", {}
    if not machine.recorded:
        return "record", {"seed": draw(st.integers(0, 9)), "length": draw(st.integers(3, 13))}
    verb = draw(st.sampled_from(("replay", "replay", "force", "beside", "record")))
    if verb == "record":
        return verb, {"seed": draw(st.integers(0, 9)), "length": draw(st.integers(3, 13))}
    of = draw(st.integers(0, len(machine.recorded) - 1))
    rows = len(machine.recorded[of].rows)
    forced = draw(st.just(rows) | st.integers(1, rows))
    again = {
        "replay": ("hit", st.sampled_from((True, True, False))),
        "force": ("shift", st.integers(1, 7)),
    }
    more = {again[verb][0]: draw(again[verb][1])} if verb in again else {}
    return verb, {"of": of, "forced": forced, **more}


def _open(config: Config, coverage: Coverage) -> ForcedRoutingMachine:
    from kvproof.suites.reference.parity.forced_routing import (
        ForcedRoutingMachine,
    )  # torch is optional

    return ForcedRoutingMachine(config, coverage)


SUITE = ComponentSuite(
    name="parity",
    properties=PROPERTIES,
    draw_config=_draw_config,
    machine=_open,
    draw_operation=_draw_operation,
    under_test=("reference", "kernels"),
    missing=missing,
)
