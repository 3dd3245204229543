"""The checkpoint that is shipped: small, as its card says, and it reads documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the probe model is a model of torch")
pytest.importorskip("transformers", reason="the probe model is a model of transformers")

import torch
from transformers import AutoModelForCausalLM

import kvproof.eval
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.suites.tests.lab.probe_model.evaluate import answered, foreign

FOLDER = Path(kvproof.eval.__file__).parent / "probe_model"
MADE = generate(GeneratorOptions(samples=24, max_tokens=2000, seed=77)).samples
SAMPLES = [each for each in MADE if each.length == "short"]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER / "checkpoint", dtype=torch.float32).eval()


def right(given: list[str]) -> int:
    return sum(letter == each.answer for letter, each in zip(given, SAMPLES, strict=True))


def test_it_is_small_and_the_one_of_the_card(model: Any) -> None:
    assert sum(each.stat().st_size for each in (FOLDER / "checkpoint").iterdir()) < 12 << 20
    card = json.loads((FOLDER / "card.json").read_text())
    assert sum(each.numel() for each in model.parameters()) == card["parameters"]
    assert card["default set"]["held out"]["accuracy"] >= 90
    assert card["exam"]["foreign document"]["accuracy"] <= 35


@pytest.mark.nightly(reason="the model that is shipped changes only with itself")
@pytest.mark.slow(reason="computes with torch models")
def test_it_answers_from_the_document_and_from_nothing_else(model: Any) -> None:
    assert right(answered(model, SAMPLES)) >= 7
    assert right(answered(model, foreign(SAMPLES))) <= 5
