"""Batches of lessons, drawn by processes of their own during training."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from kvproof.suites.tests.lab.probe_model.training_data import LEVELS, lesson

_DRILLS = 0.3
"""Share of batches of synthetic tasks, at every level."""

_CURRENT = 0.6
"""Share of the others at the current level; the rest repeats earlier ones."""


class Batch(NamedTuple):
    """Sequences of one level: [B, T] each."""

    level: int
    tokens: Tensor
    targets: Tensor
    kinds: Tensor
    looks: Tensor


class Lessons(IterableDataset[Batch]):  # type: ignore[misc]  # the types are checked without torch
    """An endless stream of batches; `level` may be raised during iteration."""

    def __init__(self, *, seed: int, batch_tokens: int) -> None:
        self.seed = seed
        self.batch_tokens = batch_tokens
        self._level = multiprocessing.Value("i", 0)

    @property
    def level(self) -> int:
        """Number of the current level."""
        return int(self._level.value)

    @level.setter
    def level(self, number: int) -> None:
        self._level.value = number

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(f"kvproof lessons {self.seed} {worker.id if worker else 0}")
        while True:
            yield self.draw(rng)

    def draw(self, rng: random.Random) -> Batch:
        """Draw one batch of the current level, or of an earlier one."""
        level = self._drawn(rng)
        size = max(1, self.batch_tokens // LEVELS[level].tokens)
        made = [lesson(rng, LEVELS[level]) for _ in range(size)]
        stacked = (np.stack(each) for each in zip(*made, strict=True))
        return Batch(level, *(torch.from_numpy(each) for each in stacked))

    def _drawn(self, rng: random.Random) -> int:
        level = self.level
        if rng.random() < _DRILLS:
            return 0
        return rng.randrange(1, level) if level > 1 and rng.random() > _CURRENT else level


def _deaf(_: int) -> None:
    """Ignore the signal to end; the training process handles it, and saves first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def loader(lessons: Lessons, workers: int) -> Iterator[Batch]:
    """Batches from this many processes; 0 draws them in this one."""
    options: dict[str, Any] = {"prefetch_factor": 2, "multiprocessing_context": "fork"}
    options["worker_init_fn"] = _deaf
    made: DataLoader[Batch] = DataLoader(
        lessons, batch_size=None, num_workers=workers, **(options if workers else {})
    )
    return iter(made)
