"""vLLM: the settings of the scheduler that makes a cache, for `kvproof replay` on its own loop."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kvproof.harness.recorder import vllm_steps
from kvproof.harness.recorder.hooks import wrap, writer_of
from kvproof.harness.recorder.log_writer import Settings
from kvproof.harness.recorder.vllm_admissions import allocated

_making: list[dict[str, Any]] = []
"""Settings of the schedulers whose constructors run."""

_overlaps: list[bool] = []
"""Whether their steps overlap."""

_connected: list[bool] = []
"""Whether they have a connector."""


def hook(module: ModuleType, settings: Settings) -> None:
    """Hook the class of a module that was just loaded."""
    del settings
    wrap(getattr(module, "Scheduler"), "__init__", _made)  # noqa: B009 - a module has no such attribute


def settings_of_the_scheduler() -> dict[str, Any]:
    """Return the settings of the scheduler that is being made; empty without one."""
    return _making[-1] if _making else {}


def steps_overlap() -> bool:
    """Return whether a step may be scheduled before the last one is done; without one: so."""
    return _overlaps[-1] if _overlaps else True


def is_connected() -> bool:
    """Return whether blocks may be filled from elsewhere; without a scheduler: so."""
    return _connected[-1] if _connected else True


def _made(original: Any) -> Callable[..., None]:
    def made(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        _making.append(_settings(vllm_config))
        _overlaps.append("Async" in type(self).__name__ or _ahead(vllm_config))
        _connected.append(getattr(vllm_config, "kv_transfer_config", None) is not None)
        try:
            original(self, vllm_config, *args, **kwargs)
        finally:
            for each in (_making, _overlaps, _connected):
                each.pop()
        _follow(self)

    return made


def _follow(scheduler: Any) -> None:
    writer = writer_of(getattr(scheduler, "kv_cache_manager", None))
    if writer is not None:
        writer.guard(lambda _: vllm_steps.follow(scheduler, allocated))


def _settings(config: Any) -> dict[str, Any]:
    """Return the values that an `EngineConfig` needs; an attribute that is missing is left out."""
    scheduler, model = config.scheduler_config, config.model_config
    found = {
        "token_budget": getattr(scheduler, "max_num_batched_tokens", None),
        "max_requests": getattr(scheduler, "max_num_seqs", None),
        "policy": getattr(scheduler, "policy", None),
        "asynchronous": getattr(scheduler, "async_scheduling", None),
        "max_length": getattr(model, "max_model_len", None),
    }
    return {name: value for name, value in found.items() if type(value) in (int, str, bool)}


def _ahead(config: Any) -> bool:
    """Return whether a step goes on, or guesses, before the last token is known."""
    batches = getattr(config, "max_concurrent_batches", 2)
    return bool(batches != 1 or getattr(config, "num_speculative_tokens", 0))
