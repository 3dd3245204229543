"""Train the probe model: `python -m kvproof.suites.tests.lab.probe_model.train --help`.

Sequences begin short and grow as the model learns. The same command resumes an interrupted run; a
termination signal (`timeout 500 python -m ...`) saves first.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from kvproof.suites.tests.lab.probe_model.auxiliary_loss import AttentionLoss
from kvproof.suites.tests.lab.probe_model.batches import Batch, Lessons, loader
from kvproof.suites.tests.lab.probe_model.evaluate import exam
from kvproof.suites.tests.lab.probe_model.files import (
    load_state,
    read_weights,
    save_checkpoint,
    save_state,
)
from kvproof.suites.tests.lab.probe_model.network import configuration, make_trainable, network
from kvproof.suites.tests.lab.probe_model.sequence_writer import KINDS, NONE, NOTE
from kvproof.suites.tests.lab.probe_model.training_data import LEVELS
from kvproof.suites.tests.lab.probe_model.training_log import TrainingLog

_WEIGHTS = (1.0, 1.0, 1.0, 0.5, 0.5, 0.02, 0.1, 0.5, 1.0, 1.0, 1.0)
"""Weights of the kinds of targets in the loss."""

_BALANCE = 0.01
"""Weight of the load-balancing loss of the experts."""

_LATEST = (0.0, 0.0, 0.30, 0.40, 0.50, 0.60, 0.70)
"""Share of the time after which a level begins at the latest."""

_MASTERED = 0.98
"""Share of correct stops and keepers, the last skills to be learned, that ends a level."""

_TOLD = 1.0
"""Weight of the attention targets."""

_LOG_STEPS = 20
_SAVE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """Training options."""

    minutes: float
    """Total minutes of training; levels and learning rate follow the elapsed share."""
    seed: int = 0
    learning_rate: float = 2e-3
    batch_tokens: int = 32768
    workers: int = 12
    layers: str = "GAGAGA"
    hidden: int = 192
    last_level: int = len(LEVELS) - 1
    first_level: int = 1
    muon: int = 1
    """1: matrices are updated by Muon."""


class Course:
    """Training state of a model."""

    def __init__(self, options: Options, device: str) -> None:
        self.options = options
        self.device = device
        self.model = network(configuration(options.layers, options.hidden), options.seed).to(device)
        make_trainable(self.model)
        self.optimizers = _optimizers(self.model, options, fused=device == "cuda")
        self.lessons = Lessons(seed=options.seed, batch_tokens=options.batch_tokens)
        self.lessons.level = options.first_level
        self.weights = torch.tensor(_WEIGHTS, device=device)
        self.steps = 0
        self.tokens = 0
        self.seconds = 0.0
        self._routed: list[tuple[Tensor, Tensor]] = []
        for layer in self.model.model.layers:
            layer.mlp.gate.register_forward_hook(self._saw)
        self.attention_loss = AttentionLoss(self.model)

    def _saw(self, _: Any, __: Any, routed: tuple[Tensor, Tensor, Tensor]) -> None:
        self._routed.append((routed[0], routed[2]))

    @property
    def share(self) -> float:
        """Elapsed share of the time."""
        return min(1.0, self.seconds / (60 * self.options.minutes))

    def step(self, batch: Batch) -> Tensor:
        """Train on a batch; return, by kind: targets, correct ones, sum of losses."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.options.learning_rate * self._rate()
        loss, counts = self._loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += batch.tokens.numel()
        return counts

    def _rate(self) -> float:
        return min(1.0, (self.steps + 1) / 100, 0.02 + 3 * (1 - self.share))

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        asked = (batch.targets.flatten() != NONE).nonzero().squeeze(1)  # on the host: no waiting
        tokens, targets, kinds, looks = (self._sent(each) for each in batch[1:])
        reported = self.attention_loss.begin(batch.level)
        asked = self._sent(asked)
        targets, kinds = targets.flatten()[asked], kinds.flatten()[asked]
        self._routed.clear()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state
            hidden, early = (
                each.flatten(0, 1)[asked] for each in (hidden, self.attention_loss.early())
            )
            said = torch.where((kinds == NOTE).unsqueeze(-1), early, hidden)
            logits = self.model.lm_head(said).float()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        weights = self.weights[kinds]
        right = (logits.argmax(-1) == targets).float()
        counts = torch.zeros(len(KINDS), 3, device=self.device)
        counts.index_add_(
            0, kinds, torch.stack([torch.ones_like(right), right, losses.detach()], 1)
        )
        loss = (losses * weights).sum() / weights.sum() + _BALANCE * self._imbalance()
        return loss + _TOLD * self.attention_loss.astray(looks) if reported else loss, counts

    def _sent(self, each: Tensor) -> Tensor:
        return each.to(self.device, non_blocking=True).long()

    def _imbalance(self) -> Tensor:
        """1 if all experts are equally busy, more otherwise; mean over the layers."""
        found = []
        for logits, chosen in self._routed:
            count = logits.shape[-1]
            every = torch.arange(count, device=chosen.device)
            busy = (chosen.unsqueeze(-1) == every).float().mean((0, 1))
            found.append(count * (busy * logits.float().softmax(-1).mean(0)).sum())
        return torch.stack(found).mean()


def _optimizers(model: Any, options: Options, *, fused: bool) -> list[torch.optim.Optimizer]:
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, weight in model.named_parameters():
        inner = weight.dim() == 2 and "embed" not in name
        (matrices if options.muon and inner else others).append(weight)
    adam = torch.optim.AdamW(
        others, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=fused
    )
    if not matrices:
        return [adam]
    muon = torch.optim.Muon(
        matrices, lr=options.learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    return [adam, muon]


class _Stop:
    """Whether the process has received a signal to end; a context manager."""

    def __enter__(self) -> _Stop:
        self.asked = False
        self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _ask(self, *_: object) -> None:
        self.asked = True


def train(course: Course, output: Path, pause: float = math.inf) -> None:
    """Train until the time, `pause` seconds or a signal ends it; save every minute."""
    log = TrainingLog(output / "log.jsonl", course.device)
    batches = loader(course.lessons, course.options.workers)
    began, saved = time.monotonic() - course.seconds, course.seconds
    end = course.seconds + pause
    with _Stop() as stop:
        while course.share < 1 and course.seconds < end and not stop.asked:
            batch = next(batches)
            log.add(batch.level, course.step(batch))
            course.seconds = time.monotonic() - began
            if course.steps % _LOG_STEPS == 0:
                _advance(course, log)
                log.write(course)
            if course.seconds > saved + _SAVE_SECONDS:
                saved = course.seconds
                _save(course, output)
        _save(course, output)


def _save(course: Course, output: Path) -> None:
    save_state(output / "state.pt", course)
    save_checkpoint(output / "checkpoint", course.model)


def _advance(course: Course, log: TrainingLog) -> None:
    level = course.lessons.level
    mastered = log.steps(level) >= _MASTERED
    late = level + 1 < len(LEVELS) and course.share >= _LATEST[level + 1]
    if level < course.options.last_level and (mastered or late):
        course.lessons.level = level + 1


def main(arguments: list[str] | None = None) -> None:
    """Train, save, evaluate."""
    given = vars(_parser().parse_args(arguments))
    output, start, samples, pause = (
        given.pop(name) for name in ("output", "start", "samples", "pause")
    )
    output.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    course = Course(Options(**given), "cuda" if torch.cuda.is_available() else "cpu")
    if start:
        read_weights(start, course.model)
    load_state(output / "state.pt", course)
    train(course, output, 60 * pause)
    if course.share < 1 or not samples:
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    numbers = _numbers(course, samples)
    (output / "card.json").write_text(json.dumps(numbers, indent=1) + "\n")
    sys.stdout.write(json.dumps(numbers) + "\n")


def _numbers(course: Course, samples: int) -> dict[str, Any]:
    """Evaluate the stored checkpoint: rounded to bfloat16, computed in float32."""
    course.model.to(torch.bfloat16).float().eval()
    course.attention_loss.begin(len(LEVELS))
    wide = exam(course.model, samples=samples, seed=1_000_003 + course.options.seed)
    default = exam(course.model, samples=48, seed=0)
    return {
        "options": asdict(course.options), "steps": course.steps, "tokens": course.tokens,
        "seconds": round(course.seconds, 1), "level": course.lessons.level,
        "parameters": sum(each.numel() for each in course.model.parameters()),
        "device": torch.cuda.get_device_name() if course.device == "cuda" else "cpu",
        "torch": torch.__version__, "transformers": transformers.__version__,
        "exam": {name: marks._asdict() for name, marks in wide.items()},
        "default set": {name: marks._asdict() for name, marks in default.items()},
    }  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train the probe model.")
    parser.add_argument("--output", type=Path, required=True, help="log, state, checkpoint, card")
    parser.add_argument("--start", type=Path, help="begin with the weights of this checkpoint")
    parser.add_argument("--samples", type=int, default=240, help="of the exam; 0: no exam")
    parser.add_argument("--minutes", type=float, required=True, help="of training")
    parser.add_argument(
        "--pause", type=float, default=math.inf, help="minutes after which the same command goes on"
    )
    for name in ("seed", "batch_tokens", "workers", "hidden", "first_level", "last_level", "muon"):
        value = getattr(Options, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--learning-rate", type=float, default=Options.learning_rate)
    parser.add_argument("--layers", default=Options.layers, help="G recurrent, A attention")
    return parser


if __name__ == "__main__":
    main()
