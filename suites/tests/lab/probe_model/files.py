"""Files of a run: the training state, and the final checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from kvproof.suites.tests.lab.probe_model.vocabulary import tokenizer_of


def save_state(path: Path, course: Any) -> None:
    """Write the training state; an incomplete file never replaces the last one."""
    state = {
        "model": course.model.state_dict(),
        "optimizers": [each.state_dict() for each in course.optimizers],
        "steps": course.steps,
        "tokens": course.tokens,
        "seconds": course.seconds,
        "level": course.lessons.level,
    }
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def load_state(path: Path, course: Any) -> None:
    """Load a state, if there is one."""
    if not path.exists():
        return
    state = torch.load(path, map_location=course.device, weights_only=True)
    course.model.load_state_dict(state["model"])
    for optimizer, kept in zip(course.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    course.steps, course.tokens, course.seconds = (
        state[name] for name in ("steps", "tokens", "seconds")
    )
    course.lessons.level = state["level"]


def save_checkpoint(folder: Path, model: Any) -> None:
    """Write weights in bfloat16, for computation in float32, and the tokenizer."""
    stored = type(model)(model.config).to(torch.bfloat16)
    stored.load_state_dict(model.state_dict())
    stored.generation_config.do_sample = False
    stored.save_pretrained(folder)
    tokenizer_of(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n")


def read_weights(folder: Path, model: Any) -> None:
    """Load the weights of a checkpoint of the same shape."""
    from transformers import AutoModelForCausalLM

    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(stored.state_dict())
