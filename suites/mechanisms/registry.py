"""The predicates by engine: every public function of the engine's modules that takes a `Failed`."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from kvproof.suites.mechanisms import (
    lmcache,
    lmdeploy,
    lmdeploy_earlier,
    sglang,
    sglang_earlier,
    transformers,
    vllm,
    vllm_earlier,
    vllm_engine,
    vllm_engine_stores,
)
from kvproof.suites.mechanisms.failed import Adopt, Predicate

_MODULES: dict[str, tuple[ModuleType, ...]] = {
    "lmcache": (lmcache,),
    "lmdeploy": (lmdeploy, lmdeploy_earlier),
    "sglang": (sglang, sglang_earlier),
    "transformers": (transformers,),
    "vllm": (vllm, vllm_earlier),
    "vllm-engine": (vllm_engine, vllm_engine_stores),
}


def modules(engine: str) -> Iterable[dict[str, Predicate]]:
    """Return name -> predicate for each module of an engine."""
    return [_predicates(module) for module in _MODULES.get(engine, ())]


def adoptions(engine: str) -> dict[str, Adopt]:
    """Return name -> how the oracle takes over the target's state after that failure."""
    found: dict[str, Adopt] = {}
    for module in _MODULES.get(engine, ()):
        found.update(getattr(module, "ADOPT", {}))
    return found


def _predicates(module: ModuleType) -> dict[str, Predicate]:
    return {
        name: each
        for name, each in vars(module).items()
        if callable(each)
        and getattr(each, "__module__", "") == module.__name__
        and not name.startswith("_")
    }
