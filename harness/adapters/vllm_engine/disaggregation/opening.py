"""Connects two sides by one of vLLM's connectors."""

from __future__ import annotations

from collections.abc import Callable

from vllm.distributed import parallel_state

from kvproof.harness.adapters.vllm_engine.disaggregation import mooncake_pair as mooncake
from kvproof.harness.adapters.vllm_engine.disaggregation import nixl_pair as nixl
from kvproof.harness.adapters.vllm_engine.disaggregation import nixl_push_pair as push
from kvproof.harness.adapters.vllm_engine.disaggregation.workers import Connector, Workers
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.contract.disaggregation import Moved, Pair, Prompt, Refused, said
from kvproof.harness.contract.disaggregation_sides import Side

TRAITS = {"nixl": nixl.TRAITS, "nixl push": push.TRAITS, "mooncake": mooncake.TRAITS}
_CONNECTORS: dict[str, tuple[Connector, Callable[[Workers, Workers], Pair]]] = {
    "nixl": (nixl.CONNECTOR, nixl.NixlPair),
    "nixl push": (push.CONNECTOR, push.NixlPushPair),
    "mooncake": (mooncake.CONNECTOR, mooncake.MooncakePair),
}


def opened(planner: str, prefill: Side, decode: Side) -> Pair | Refused:
    """Connect two sides; what vLLM raises is a refusal."""
    connector, pair = _CONNECTORS[planner or "nixl"]
    config, groups = RUNNING.config, (parallel_state._TP, parallel_state._PP)
    alone = True
    try:
        sides = Workers("prefill", prefill, connector), Workers("decode", decode, connector)
        alone = False
        return Kept(pair(*sides))
    # these are vLLM's refusals at its start and at a handshake; others are faults of the adapter
    except (AssertionError, NotImplementedError, RuntimeError, ValueError) as error:
        return Refused(said(error), alone=alone)
    finally:
        RUNNING.config = config
        parallel_state._TP, parallel_state._PP = groups


class Kept:
    """A pair after whose moves the process' own groups are those of the process again."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def move(self, prompt: Prompt) -> Moved:
        """Let the pair move a prompt."""
        groups = parallel_state._TP, parallel_state._PP
        try:
            return self._pair.move(prompt)
        finally:
            parallel_state._TP, parallel_state._PP = groups
