"""Calls a model on a batch, with the arguments that its family takes."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from kvproof.reference.model_runner.batch import Batch
from kvproof.reference.model_runner.cache import PagedCache
from kvproof.reference.model_runner.experts import ExpertsRecorder
from kvproof.reference.model_runner.images import Images
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.specs import Probe, cache_argument


class Forwarded(NamedTuple):
    """What a forward says."""

    logits: torch.Tensor
    """[rows, tokens, vocabulary], or of the last token only."""
    experts: torch.Tensor | None
    """[rows, tokens, layers, ranks]"""


class Forward:
    """One model with its cache."""

    def __init__(self, model: Any, probe: Probe, memory: PagedMemory, *, experts: bool) -> None:
        """`experts`: record which ones are chosen."""
        self._model = model
        self._cache = PagedCache(memory, probe.layers)
        self._stateful = bool(memory.map.states)
        self._attends = any(layer.tokens for layer in probe.layers)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self._cache_argument = cache_argument(model)
        self._recorder = ExpertsRecorder(model) if experts else None
        self.images = Images(model)

    def __call__(self, batch: Batch, *, everywhere: bool) -> Forwarded:
        """Compute the segments of a batch and store what they leave behind.

        `everywhere` asks for the logits of all tokens.
        """
        self._cache.bind(batch)
        arguments = self._arguments(batch)
        if not everywhere and "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        with self._recorder or nullcontext() as recorder, self.images.shown(batch) as shown:
            logits = self._model(use_cache=True, **arguments, **shown).logits
            chosen = recorder.rows(len(batch.rows), batch.tokens) if recorder else None
        if self._stateful:
            for row, state in zip(batch.rows, self._cache.collect(), strict=True):
                row.state = state
        return Forwarded(logits, chosen)

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        arguments = {self._cache_argument: self._cache, "input_ids": batch.input_ids()}
        if "position_ids" in self._takes:
            places = self.images.position_ids(batch)
            arguments["position_ids"] = batch.position_ids() if places is None else places
        mask = batch.attention_mask() if self._attends else None
        if mask is not None:
            arguments["attention_mask"] = mask
        return arguments
