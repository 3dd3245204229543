"""A Hugging Face model as the `Model` of an engine (C1, S4, T6, R1, R4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.model.interface import Content, Place, Sample, Stored, Work
from kvproof.reference.model_runner.batch import Batch, Row
from kvproof.reference.model_runner.content import put, take
from kvproof.reference.model_runner.experts import replayed
from kvproof.reference.model_runner.forward import Attention, Forward
from kvproof.reference.model_runner.images import Images, spans_inside
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.object_transfer import ObjectTransfer
from kvproof.reference.model_runner.page_map import group_configs, layer_groups, page_map
from kvproof.reference.model_runner.specs import probe
from kvproof.reference.states.batch_copies import StateBatch

Mode: TypeAlias = Literal["exact", "batched", "invariant"]
MODES: tuple[Mode, ...] = ("exact", "batched", "invariant")
OnLogits: TypeAlias = Callable[[str, int, torch.Tensor], None]
"""Called with a request, its first position and logits [tokens, vocabulary], once per forward."""
Choose: TypeAlias = Callable[[Work, torch.Tensor], int]
"""Called with work that reaches the end of its tokens and logits [vocabulary]; returns a token."""


def cache_config(
    model: Any,
    *,
    num_blocks: int,
    block_size: int = 64,
    kernel_block_size: int = 0,
    local_block_size: int = 0,
    **options: Any,
) -> CacheConfig:
    """Describe the caches of a model to the control plane; `options` are those of CacheConfig.

    `local_block_size`: of windows and chunks, if not that of full attention. Raises
    UnsupportedModel and ConfigError.
    """
    found = probe(model)
    groups = group_configs(
        layer_groups(found.layers),
        block_size=block_size,
        kernel_block_size=kernel_block_size,
        local_block_size=local_block_size,
    )
    experts = found.experts if options.get("return_routed_experts") else (0, 0, 0)
    return CacheConfig(num_blocks, block_size, groups=groups, experts=experts, **options)


class HuggingFaceModel:
    """Runs steps at once.

    `exact`: one request per forward pass, so its logits equal those of a `DynamicCache` with the
    same chunks, bit for bit, independent of other requests. `batched`: segments of equal length
    together. `invariant`: one token of one request per forward pass, so its logits depend on its
    tokens alone, bit for bit: on no chunk, hit or other request.
    """

    def __init__(
        self,
        model: Any,
        config: CacheConfig,
        *,
        mode: Mode = "exact",
        attention: Attention = "gather",
        on_logits: OnLogits | None = None,
        choose: Choose | None = None,
    ) -> None:
        """`choose` samples, the likeliest token without it.

        Raises ConfigError if the groups of `config` are not those of the model, and for an
        attention that cannot serve it.
        """
        if mode not in MODES:
            raise ConfigError(f"mode {mode!r} must be one of {', '.join(MODES)}")
        found = probe(model)
        self.config, self.mode, self.on_logits = config, mode, on_logits
        self.choose = choose or likeliest
        device = next(model.parameters()).device
        self.memory = PagedMemory(page_map(found.layers, config), config, device)
        experts = config.return_routed_experts
        self.forward = Forward(model, found, self.memory, experts=experts, attention=attention)
        self.replays: dict[str, torch.Tensor] = {}
        """Request -> expert ids [tokens, layers, ranks] that route its first tokens (R4).
        Ids that the model would not choose make other entries: such a request needs a namespace
        of its own (H1)."""
        self._model = model
        self._objects = ObjectTransfer(self.memory, config)
        self._results: dict[int, dict[str, Sample]] = {}
        self.computed = self.forwards = 0
        """Tokens computed, and calls of the model."""

    @property
    def images(self) -> Images:
        """Images of the requests; pixels are added before the request."""
        return self.forward.images

    # --- steps ---

    def launch(self, step: int, works: Sequence[Work]) -> None:
        """Run a step; see `Model`."""
        with torch.no_grad():
            self._copy_before(works)
            rows = [self._begin(work) for work in works]
            answers = {row.work.request_id: _Answer(row.work) for row in rows}
            while ready := [row for row in rows if row.cuts]:
                for together in self._batches(ready):
                    self._run(together, answers)
        self._results[step] = {name: answer.sample() for name, answer in answers.items()}

    def _copy_before(self, works: Sequence[Work]) -> None:
        """Copy the blocks, then the states that the step begins with (S4, T6)."""
        self.memory.copy([pair for work in works for pair in work.copies])
        restores = [work.state.restore for work in works if work.state and work.state.restore]
        lines = [(running, checkpoint, None) for checkpoint, running in restores]
        rows = self.memory.state_rows
        self.memory.copy_states(StateBatch.of(lines).copies(rows=rows).restores)

    def _begin(self, work: Work) -> Row:
        """Read the state of a request; cut its step where states are kept."""
        recorded = len(self.replays.get(work.request_id, ()))
        cuts = {work.stop} | ({recorded} if work.start < recorded < work.stop else set())
        if self.mode == "invariant":
            cuts |= set(range(work.start + 1, work.stop))
        if work.state is None:
            return Row(work, sorted(cuts), work.start, None)
        kept = {tokens for tokens, _ in (*work.state.writes, *work.state.saves)}
        state = self.memory.state(work.state.read) if len(work.state.read) else None
        return Row(work, sorted(kept | cuts), work.start, state)

    def _batches(self, rows: Sequence[Row]) -> Iterable[list[Row]]:
        if self.mode != "batched":
            return [[row] for row in rows]
        alike: dict[object, list[Row]] = {}
        for row in rows:
            own = spans_inside(row) or row.work.request_id in self.replays
            alone = row.work.request_id if own else ""
            alike.setdefault((row.tokens, row.state is None, alone), []).append(row)
        return alike.values()

    def _run(self, rows: Sequence[Row], answers: Mapping[str, _Answer]) -> None:
        batch = Batch(self.memory, rows)
        plain = rows[0].work.request_id not in self.replays
        with self._routing(rows[0]):
            result = self.forward(batch, everywhere=self.on_logits is not None, plain=plain)
        self.forwards += 1
        self.computed += len(rows) * batch.tokens
        for index, row in enumerate(rows):
            if self.on_logits:
                self.on_logits(row.work.request_id, row.done, result.logits[index])
            row.done = row.cuts.pop(0)
            self._keep_state(row)
            answer = answers[row.work.request_id]
            if result.experts is not None:
                answer.experts.append(result.experts[index])
            if not row.cuts and row.work.samples:
                last = result.logits[index, -1]
                answer.token = self.choose(row.work, last)

    def _routing(self, row: Row) -> AbstractContextManager[None]:
        """Route a row that is computed alone by its recorded experts."""
        recorded = self.replays.get(row.work.request_id)
        if recorded is None or row.done >= len(recorded):
            return nullcontext()
        return replayed(self._model, recorded[row.done : row.cuts[0]][None])

    def _keep_state(self, row: Row) -> None:
        if row.work.state is None:
            return
        assert row.state is not None, "a forward of a recurrent model left no state"
        for tokens, ids in (*row.work.state.writes, *row.work.state.saves):
            if tokens == row.done:
                self.memory.write_state(ids, row.state)

    def finish(self, step: int) -> Mapping[str, Sample]:
        """Return the samples of the oldest step."""
        return self._results.pop(step)

    # --- whole requests, and blocks that are no longer read ---

    def take(self, place: Place) -> Content:
        """See `Model`."""
        return take(self.memory, place)

    def put(self, content: Content, place: Place) -> None:
        """See `Model`."""
        put(self.memory, content, place)

    @property
    def geometry(self) -> str:
        """See `Mover`."""
        return self.memory.map.geometry

    def object_bytes(self, part: str) -> int:
        """See `Mover`."""
        return self._objects.object_bytes(part)

    def save(self, places: Sequence[Stored]) -> list[memoryview]:
        """See `Mover`."""
        return self._objects.save(places)

    def load(self, places: Sequence[Stored], objects: Sequence[memoryview]) -> None:
        """See `Mover`."""
        self._objects.load(places, objects)

    def sleep(self, *, keep: bool) -> None:
        """See `Sleeper`."""
        self.memory.sleep(keep=keep)

    def wake(self) -> None:
        """See `Sleeper`."""
        self.memory.wake()

    def forget(self, blocks: Sequence[int]) -> None:
        """Fill blocks with NaN."""
        self.memory.poison(blocks)


def likeliest(_: Work, logits: torch.Tensor) -> int:
    """Return the token with the largest logit, the first of several."""
    return int(logits.argmax())


class _Answer:
    def __init__(self, work: Work) -> None:
        self.token: int | None = None
        self.experts: list[torch.Tensor] = []
        """[tokens, layers, ranks] of each segment."""
        self._tokens = work.stop - work.start

    def sample(self) -> Sample:
        """Answer for the whole step."""
        rows = np.zeros((self._tokens, 0, 0), np.int64)
        if self.experts:
            rows = torch.cat(self.experts).cpu().numpy()
        return Sample(self.token, 0, (), rows)
