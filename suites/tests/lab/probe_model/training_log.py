"""Log of a training run: accuracy and loss per level and kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvproof.suites.tests.lab.probe_model.sequence_writer import EASY, HARD, KEEPER, KINDS
from kvproof.suites.tests.lab.probe_model.training_data import LEVELS


class TrainingLog:
    """Counts since the last line, by level and kind."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.counts = torch.zeros(len(LEVELS), len(KINDS), 3, device=device)
        self.seen = torch.zeros(len(LEVELS), 2)

    def add(self, level: int, counts: Tensor) -> None:
        """Count a batch of a level."""
        self.counts[level] += counts

    def steps(self, level: int) -> float:
        """Share of correct stops and keepers at a level; a slowly decaying average."""
        recent = self.counts[level, [EASY, HARD, KEEPER]].sum(0).cpu()
        self.seen[level] = 0.5 * self.seen[level] + recent[:2]
        return float(self.seen[level, 1] / max(1.0, float(self.seen[level, 0])))

    def write(self, course: Any) -> None:
        """Write the counts, and reset them."""
        line = {
            "seconds": round(course.seconds, 1), "step": course.steps, "tokens": course.tokens,
            "level": course.lessons.level, "loss": self._shares(2), "right": self._shares(1),
        }  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        self.counts.zero_()

    def _shares(self, column: int) -> dict[str, dict[str, float]]:
        counts = self.counts.cpu()
        return {
            str(level): {
                kind: round(float(counts[level, n, column] / counts[level, n, 0]), 3)
                for n, kind in enumerate(KINDS)
                if counts[level, n, 0]
            }
            for level in range(len(LEVELS))
            if counts[level].any()
        }
