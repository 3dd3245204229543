"""Calls a model on a batch, with the arguments that its family takes."""

from __future__ import annotations

import inspect
import logging
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch

from kvproof.reference.core.cache_config import ConfigError
from kvproof.reference.model_runner.batch import Batch
from kvproof.reference.model_runner.cache import PagedCache
from kvproof.reference.model_runner.decoding import Decoding, Graph, room_for
from kvproof.reference.model_runner.experts import ExpertsRecorder
from kvproof.reference.model_runner.images import Images, spans_inside
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.paged_attention import attending, why_not_paged
from kvproof.reference.model_runner.specs import Probe, cache_argument

Attention: TypeAlias = Literal["gather", "paged"]
"""`gather`: the model's own, on gathered entries. `paged`: steps of one token go through the
kernel that reads pages; on a GPU as graphs, if nothing else watches the forward."""
_log = logging.getLogger(__name__)
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
LEAST_TOKENS = 1024
"""Tokens of the longest request that the first buffers hold; they double."""


class Forwarded(NamedTuple):
    """Results of a forward."""

    logits: torch.Tensor
    """[rows, tokens, vocabulary], or of the last token only."""
    experts: torch.Tensor | None
    """[rows, tokens, layers, ranks]"""

    def first(self, count: int) -> Forwarded:
        """Return the results of the first rows."""
        return Forwarded(self.logits[:count], self.experts)


class Forward:
    """One model with its cache."""

    def __init__(
        self,
        model: Any,
        probe: Probe,
        memory: PagedMemory,
        *,
        experts: bool,
        attention: Attention = "gather",
    ) -> None:
        """`experts`: record which ones are chosen. Raises ConfigError."""
        why = why_not_paged(memory.map) if attention == "paged" else ""
        if attention not in ATTENTIONS or why:
            raise ConfigError(
                f"attention {attention!r} must be one of {', '.join(ATTENTIONS)}"
                + (f", and here gather: {why}" if why else ", for example gather")
            )
        self._model, self._memory, self._paged = model, memory, attention == "paged"
        self._cache = PagedCache(memory, probe.layers)
        self._stateful = bool(memory.map.states)
        self._attends = any(layer.tokens for layer in probe.layers)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self._cache_argument = cache_argument(model)
        self._recorder = ExpertsRecorder(model) if experts else None
        self._decoding = Decoding(memory, rows=1, tokens=LEAST_TOKENS) if self._paged else None
        self.images = Images(model)
        self.graphs = memory.device.type == "cuda" and not self._stateful and not experts
        """Whether steps through the kernel are captured once and replayed."""
        self.paged_rows = self.replays = 0
        """Rows computed through the kernel, and replays of graphs."""

    def __call__(self, batch: Batch, *, everywhere: bool, plain: bool = True) -> Forwarded:
        """Compute the segments of a batch and store their results.

        `everywhere`: return the logits of all tokens. `plain`: only this class changes how the
        forward pass runs.
        """
        if self._paged and batch.tokens == 1 and not batch.fresh and not _shows(batch):
            return self._decode(batch, plain=plain)
        self._cache.bind(batch)
        arguments = self._arguments(batch)
        if not everywhere and "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = 1
        with self.images.shown(batch) as shown:
            return self._run(batch, {**arguments, **shown})

    def _run(self, batch: Batch, arguments: dict[str, Any]) -> Forwarded:
        with self._recorder or nullcontext() as recorder:
            logits = self._model(use_cache=True, **arguments).logits
            chosen = recorder.rows(len(batch.rows), batch.tokens) if recorder else None
        if self._stateful:
            for row, state in zip(batch.rows, self._cache.collect(), strict=True):
                row.state = state
        return Forwarded(logits, chosen)

    # --- one token per request, through the kernel ---

    def _decode(self, batch: Batch, *, plain: bool) -> Forwarded:
        graphs = self.graphs and plain
        count = len(batch.rows)
        rows = room_for(count) if graphs else count
        places = self.images.position_ids(batch)
        decoding = self._room(rows, batch.past + 1)
        decoding.put(batch, batch.position_ids() if places is None else places, rows=rows)
        self._cache.bind(batch, decoding)
        self.paged_rows += count
        arguments = {self._cache_argument: self._cache, **decoding.arguments()}
        if "position_ids" not in self._takes:
            del arguments["position_ids"]
        if graphs and rows not in decoding.graphs:
            self._capture(decoding, batch, arguments)
        if rows in decoding.graphs and graphs:
            self.replays += 1
            return Forwarded(decoding.graphs[rows].replay()[:count].clone(), None)
        with attending(self._model, decoding):
            return self._run(batch, arguments).first(count)

    def _capture(self, decoding: Decoding, batch: Batch, arguments: dict[str, Any]) -> None:
        """Capture the forward pass on the present buffers; without graphs if that fails."""
        try:
            with attending(self._model, decoding), torch.cuda.device(self._memory.device):
                forward = Graph(lambda: self._run(batch, arguments).logits)
        except RuntimeError as error:
            self.graphs = False
            _log.warning("steps are not captured as graphs: %s", error)
        else:
            decoding.graphs[decoding.count] = forward

    def _room(self, rows: int, tokens: int) -> Decoding:
        old = self._decoding
        assert old is not None
        if rows > old.rows or tokens > old.tokens:
            rows, tokens = max(old.rows, room_for(rows)), max(old.tokens, room_for(tokens))
            self._decoding = old = Decoding(self._memory, rows=rows, tokens=tokens)
        return old

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        arguments = {self._cache_argument: self._cache, "input_ids": batch.input_ids()}
        if "position_ids" in self._takes:
            places = self.images.position_ids(batch)
            arguments["position_ids"] = batch.position_ids() if places is None else places
        mask = batch.attention_mask() if self._attends else None
        if mask is not None:
            arguments["attention_mask"] = mask
        return arguments


def _shows(batch: Batch) -> bool:
    return any(spans_inside(row) for row in batch.rows)
