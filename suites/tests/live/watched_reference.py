"""The reference engine on a tiny model, whose pages hold the canary's words beside keys and values.

Each layer has one more cached tensor of eight bytes a slot, so that whatever copies blocks copies
the words. They are written and checked by the slots that attention gets, ahead of each forward.
"""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

from kvproof.suites.tests.live.needs import torch
from kvproof.suites.tests.models.model_kit import shared, text

from kvproof.kernels.canary.canary import Canary, Rows  # isort: skip
from kvproof.reference.core.identity import Namespace  # isort: skip
from kvproof.reference.engine.engine import Engine  # isort: skip
from kvproof.reference.engine.engine_config import EngineConfig  # isort: skip
from kvproof.reference.model_runner import runner as runners  # isort: skip
from kvproof.reference.model_runner.batch import Batch  # isort: skip
from kvproof.reference.model_runner.specs import CachedLayer, Part, probe  # isort: skip

WORDS = "canary"


class Watched:
    """Stands in the place of a runner's forward."""

    def __init__(self, runner: Any) -> None:
        self.forward, self.memory = runner.forward, runner.memory
        self.canaries = [
            Canary(self.memory.view(group, fields[0].layer, WORDS)[..., 0])
            for group, fields in enumerate(self.memory.map.fields)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.forward, name)

    def __call__(self, batch: Batch, **more: Any) -> Any:
        rows = _rows(batch)
        for group, canary in enumerate(self.canaries):
            slots = batch.slots(group)
            ids = slots.pages * canary.words.shape[1] + slots.offsets
            canary.write(rows, ids[:, -batch.tokens :].reshape(-1))
            size = self.memory.map.configs[group].size
            canary.check(rows, _table(batch, ids), entry=1, window=size)
        return self.forward(batch, **more)

    @property
    def wrong(self) -> int:
        return sum(each.poll().wrong for each in self.canaries)

    @property
    def slots(self) -> int:
        return sum(each.poll().slots for each in self.canaries)


def _rows(batch: Batch) -> Rows:
    works = [row.work for row in batch.rows]
    known = torch.zeros((len(works), batch.past + batch.tokens), dtype=torch.int32)
    for at, row in enumerate(batch.rows):
        known[at, : row.done] = torch.tensor(row.work.tokens[: row.done], dtype=torch.int32)
    salts = [hash((work.namespace, work.weights)) for work in works]
    return Rows(
        known,
        torch.tensor(salts),
        torch.arange(len(works)),
        batch.input_ids().reshape(-1).int(),
        torch.from_numpy(batch.places[:, -batch.tokens :].copy()).reshape(-1),
        torch.arange(len(works) + 1, dtype=torch.int32) * batch.tokens,
    )


def _table(batch: Batch, ids: torch.Tensor) -> torch.Tensor:
    """Return the slot of each position, [rows, positions]."""
    table = torch.zeros((len(ids), batch.past + batch.tokens), dtype=torch.int32)
    places = torch.from_numpy(batch.places[:, -ids.shape[1] :].copy())
    for own, slots, at in zip(table, ids.int(), places, strict=True):
        own[at[at >= 0]] = slots[at >= 0]
    return table


def _with_words(model: Any) -> Any:
    found = probe(model)
    return found._replace(layers=tuple(map(_layer, found.layers)))


def _layer(layer: CachedLayer) -> CachedLayer:
    part = Part(WORDS, 0, (1,), torch.int64)
    return layer._replace(tokens=(*layer.tokens, part)) if layer.tokens else layer


def open_watched(family: str, *, tier: str | int = 0, **options: Any) -> tuple[Engine, Watched]:
    """Return an engine whose pool is too small for all requests."""
    model = shared(family).model
    settings = {"num_blocks": 26, "block_size": 16, "kernel_block_size": 4, **options}
    with patch.object(runners, "probe", _with_words):
        config = runners.cache_config(model, **settings)
        runner = runners.HuggingFaceModel(model, config, mode="batched")
    runner.forward = watched = Watched(runner)
    config = EngineConfig(config, 32, poison_freed=True, host_tier=tier)
    return Engine(config, runner), watched


def serve_turns(engine: Engine, *, seed: int = 3, count: int = 6) -> dict[str, tuple[int, ...]]:
    """Serve prompts of two families, with turns and a tenant; returns the answers."""
    rng, found = random.Random(seed), {}
    families = [text(70, seed=1), text(50, seed=2)]
    prompts: list[tuple[int, ...]] = []
    for number in range(count):
        if found and rng.random() < 0.4:
            name = rng.choice(sorted(found))
            prompt = (*prompts[int(name)], *found[name], *text(5, seed=number))
        else:
            family = rng.choice(families)
            prompt = (*family[: rng.randint(20, len(family))], *text(4, seed=number))
        prompts.append(prompt)
        salt = Namespace(salt="a") if number % 4 == 3 else Namespace()
        refused = engine.add_request(str(number), prompt, max_new_tokens=7, namespace=salt)
        assert refused is None
        for _ in range(rng.randint(0, 6)):
            _step(engine, found)
    while engine.busy:
        _step(engine, found)
    return found


def _step(engine: Engine, found: dict[str, tuple[int, ...]]) -> None:
    if engine.busy:
        found.update({each.request_id: each.tokens for each in engine.step() if each.done})
        assert not engine.stuck
