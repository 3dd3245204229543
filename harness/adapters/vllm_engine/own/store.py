"""One engine's connector of a user's own, in the place of `stores` that kvproof knows."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from kvproof.harness.adapters.vllm_engine.own import chosen
from kvproof.harness.adapters.vllm_engine.own.accesses import Accesses, taking
from kvproof.harness.adapters.vllm_engine.own.reports import Reports
from kvproof.harness.whole_engine.device import ShadowDevice

_PATIENCE_S = 0.005
FOLDER = "{folder}"
"""In the value of an option: an empty folder of each engine."""
_WORKER = (
    "register_kv_caches",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_finished",
    "get_transfer_results",
    "handle_preemptions",
)
"""Hooks of the worker's half in which a class may copy."""


class OwnConnector:
    """A folder, and the view of the class' copies and reports."""

    def __init__(self, running: Any) -> None:
        """Import the class anew: what its modules keep belongs to one engine."""
        self._name, self._given = running.config.connector, running.config.tier
        self._folder = Path(mkdtemp(prefix="kvproof-connector-"))
        self._accesses, self._reports = Accesses(), Reports(running)
        chosen.load_anew()

    def config(self) -> Any:
        """Return vLLM's KVTransferConfig."""
        options = {key: self._filled(each) for key, each in self._given.items()}
        return chosen.transfer_config(self._name, options)

    def _filled(self, value: Any) -> Any:
        return value.replace(FOLDER, str(self._folder)) if isinstance(value, str) else value

    def install(self) -> None:
        """There is nothing to stand in for."""

    def worker(self, agent: Any) -> None:
        """Look at the hooks of the worker's half."""
        for name in filter(lambda each: hasattr(agent, each), _WORKER):
            setattr(agent, name, self._accesses.hook(name, getattr(agent, name)))
        errors = agent.get_block_ids_with_load_errors
        for name in ("start_load_kv", "wait_for_layer_load"):
            setattr(agent, name, self._reports.loading(getattr(agent, name), errors))
        if lose := getattr(agent, "lose_content", None):
            agent.start_load_kv = self._reports.losing(agent.start_load_kv, lose)
        agent.get_block_ids_with_load_errors = self._reports.errors(errors)
        ends = "get_transfer_results" if hasattr(agent, "get_transfer_results") else "get_finished"
        setattr(agent, ends, self._reports.finished(getattr(agent, ends)))

    def scheduler(self, half: Any) -> None:
        """Look at the hooks of the scheduler's half."""
        for name, look in (
            ("get_num_new_matched_tokens", self._reports.asked),
            ("update_state_after_alloc", self._reports.allocated),
            ("update_connector_output", self._reports.told),
        ):
            setattr(half, name, look(taking(name, getattr(half, name))))

    def seen(self, cache: Any, device: ShadowDevice) -> Any:
        """Return a layer's cache as the connector gets it."""
        del device
        return cache

    def watch(self, caches: Any, device: ShadowDevice) -> None:
        """Watch the caches of all layers."""
        flat = [
            each for cache in caches for each in (cache if isinstance(cache, list) else [cache])
        ]
        self._accesses.watch(flat, device)

    def launched(self) -> None:
        """Run a launch at once where copies may come from out of sight."""
        if self._accesses.unseen:
            self._accesses.settle()

    def wait(self) -> None:
        """Give threads of the class some real time in a step that computes nothing."""
        if self._accesses.unseen:
            time.sleep(_PATIENCE_S)

    def before_step(self, device: ShadowDevice) -> None:
        """There is nothing to do: losses come between look-up and load."""

    def close(self, *halves: Any) -> None:
        """Shut both halves down, and remove the folder."""
        for each in halves:
            with suppress(Exception):  # its engine is over: nothing is judged any more
                each.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
