"""Training of the probe model: fast functions are those of transformers, runs go on, files load."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the probe model is a model of torch")
pytest.importorskip("transformers", reason="the probe model is a model of transformers")

import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.reference.model_runner.loading import load
from kvproof.suites.tests.lab.probe_model import evaluate, train
from kvproof.suites.tests.lab.probe_model.batches import Batch, Lessons, loader
from kvproof.suites.tests.lab.probe_model.network import (
    configuration,
    gated_delta_rule,
    make_trainable,
    network,
)
from kvproof.suites.tests.lab.probe_model.sequence_writer import CHOICE, EASY, HARD, KINDS, NONE
from kvproof.suites.tests.lab.probe_model.vocabulary import encode, ids, tokenizer_of

ORIGINAL = qwen.torch_chunk_gated_delta_rule
SMALL = {"minutes": 1.0, "hidden": 32, "layers": "GA", "batch_tokens": 1024, "workers": 0}


@pytest.fixture(autouse=True)
def stock_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put transformers' function back after each test."""
    monkeypatch.setattr(qwen, "torch_chunk_gated_delta_rule", ORIGINAL)


@pytest.fixture(scope="module")
def course() -> train.Course:
    return train.Course(train.Options(**SMALL), "cpu")


@pytest.mark.parametrize("chunks", [1, 2, 7])
def test_the_scan_computes_what_transformers_computes(chunks: int) -> None:
    torch.manual_seed(chunks)
    shape = (2, 64 * chunks, 3)
    query, key, value = (torch.randn(*shape, width) for width in (16, 16, 24))
    decay, beta = -torch.rand(shape) * 2, torch.rand(shape)
    expected, _ = ORIGINAL(query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True)
    found, _ = gated_delta_rule(query, key, value, decay, beta)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_the_model_that_learns_computes_what_the_stored_one_computes() -> None:
    model = network(configuration("GA", 32), 0).eval()
    tokens = torch.randint(5, 2000, (2, 128), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        stock = model(tokens, use_cache=False).logits
        make_trainable(model)
        fast = model(tokens, use_cache=False).logits
    assert (fast - stock).abs().max() < 1e-4 * stock.abs().max()
    assert (fast - stock).abs().max() > 0


@pytest.mark.slow(reason="computes with torch models")
def test_a_batch_that_is_repeated_is_learned(course: train.Course) -> None:
    batch = course.lessons.draw(random.Random(1))
    course.steps = 100
    losses = [float(course.step(batch)[:, 2].sum()) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_counts_are_those_of_the_batch(course: train.Course) -> None:
    course.lessons.level = 1
    batch = drawn(course.lessons, 1)
    counts = course.step(batch)
    assert 2 * int(counts[[EASY, HARD], 0].sum()) == int(counts[CHOICE, 0]) > 0
    assert int(counts[:, 0].sum()) == int((batch.targets != NONE).sum())


def drawn(lessons: Lessons, level: int) -> Batch:
    """The first batch of a level."""
    rng = random.Random(2)
    return next(batch for _ in range(100) if (batch := lessons.draw(rng)).level == level)


def test_levels_rise_when_mastered_or_late(course: train.Course, tmp_path: Path) -> None:
    log = train.TrainingLog(tmp_path / "log.jsonl", "cpu")
    course.lessons.level, course.seconds = 1, 0.0
    train._advance(course, log)
    assert course.lessons.level == 1
    counts = torch.ones(len(KINDS), 3)
    counts[[EASY, HARD]] = torch.tensor([100.0, 99, 5])
    log.add(1, counts)
    train._advance(course, log)
    assert course.lessons.level == 2
    course.seconds = 60 * 0.4
    train._advance(course, log)
    assert course.lessons.level == 3
    log.write(course)
    line = json.loads((tmp_path / "log.jsonl").read_text())
    assert line["right"]["1"]["easy stop"] == 0.99


def test_a_look_at_the_right_place_costs_nothing_and_elsewhere_it_does(
    course: train.Course,
) -> None:
    looks = torch.full((1, 4), NONE)
    assert float(course.attention_loss.astray(looks)) == 0
    looks[0, 3] = 1
    for place, cost in ((1, 0.0), (2, 0.0), (0, 60.0)):
        attention = torch.zeros(1, 2, 4, 4)
        attention[0, :, 3, place] = 1
        course.attention_loss._seen["attention"] = attention
        assert float(course.attention_loss.astray(looks)) == pytest.approx(cost, abs=10)
        assert (float(course.attention_loss.astray(looks)) > 50) == bool(cost)


def test_attention_is_told_at_short_levels_only(course: train.Course) -> None:
    batch = drawn(course.lessons, 0)
    assert course.attention_loss.begin(0)
    course.model.model(batch.tokens[:2].long(), use_cache=False)
    assert course.attention_loss._seen["attention"].shape[2:] == (256, 256)
    assert not course.attention_loss.begin(4)
    course.model.model(batch.tokens[:2].long(), use_cache=False)
    assert "attention" not in course.attention_loss._seen
    assert course.attention_loss.early().shape == (2, 256, 32)


def test_rightly_recited_choices_alone_end_no_level(course: train.Course, tmp_path: Path) -> None:
    log = train.TrainingLog(tmp_path / "log.jsonl", "cpu")
    course.lessons.level, course.seconds = 1, 0.0
    counts = torch.zeros(len(KINDS), 3)
    counts[CHOICE] = torch.tensor([100.0, 100, 0])
    log.add(1, counts)
    train._advance(course, log)
    assert course.lessons.level == 1


def test_processes_draw_different_batches_of_the_level() -> None:
    lessons = Lessons(seed=1, batch_tokens=1024)
    lessons.level = 2
    batches = loader(lessons, 2)
    found = [next(batches) for _ in range(12)]
    assert {2} < {each.level for each in found} <= {0, 1, 2}
    assert len({each.tokens.numpy().tobytes() for each in found}) == 12


def test_a_run_goes_on_and_its_checkpoint_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_numbers", lambda course, _: {"steps": course.steps})
    arguments = ["--output", str(tmp_path), "--hidden", "32", "--layers", "GA", "--workers", "0"]
    size = ["--batch-tokens", "512"]
    steps, minutes = [], 0.02
    for _ in range(2):
        train.main([*arguments, *size, "--minutes", str(minutes)])
        steps.append(json.loads((tmp_path / "card.json").read_text())["steps"])
        minutes += torch.load(tmp_path / "state.pt", weights_only=True)["seconds"] / 60
    assert 0 < steps[0] < steps[1]
    qwen.torch_chunk_gated_delta_rule = ORIGINAL
    loaded = load(tmp_path / "checkpoint")
    assert loaded.model.dtype == torch.float32
    assert loaded.chat([{"role": "user", "content": "Question: lark"}]) == evaluate.prompted(
        "Question: lark"
    )


def test_a_run_that_is_told_to_end_saves_and_a_checkpoint_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = train.Course.step

    def reported(self: train.Course, batch: Batch) -> torch.Tensor:
        counts = step(self, batch)
        if self.steps == 2:
            signal.raise_signal(signal.SIGTERM)
        return counts

    monkeypatch.setattr(train.Course, "step", reported)
    before = signal.getsignal(signal.SIGTERM)
    small = ["--hidden", "32", "--layers", "GA", "--workers", "0", "--batch-tokens", "512"]
    train.main([*small, "--output", str(tmp_path / "a"), "--minutes", "5"])
    assert signal.getsignal(signal.SIGTERM) == before
    assert torch.load(tmp_path / "a/state.pt", weights_only=True)["steps"] == 2
    assert not (tmp_path / "a/card.json").exists()
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "a/checkpoint").state_dict()
    start = ["--start", str(tmp_path / "a/checkpoint"), "--pause", "0", "--minutes", "5"]
    train.main([*small, *start, "--output", str(tmp_path / "b")])
    second = AutoModelForCausalLM.from_pretrained(tmp_path / "b/checkpoint").state_dict()
    assert all((second[name] == weight).all() for name, weight in first.items())


def test_a_run_without_exam_writes_no_card(tmp_path: Path) -> None:
    small = ["--hidden", "32", "--layers", "GA", "--workers", "0", "--batch-tokens", "512"]
    train.main([*small, "--output", str(tmp_path), "--minutes", "0.001", "--samples", "0"])
    assert (tmp_path / "checkpoint/model.safetensors").exists()
    assert not (tmp_path / "card.json").exists()


def test_the_stored_tokenizer_splits_as_training_does(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    for sample in generate(GeneratorOptions(samples=6, max_tokens=2000, seed=5)).samples:
        text = own_prompts().render(sample)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == encode(text)
    for text in ("", "naïve  cafés\t\n\n 12,345 €", "The correct answer is (B)\n"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_what_is_decoded_from_any_draft_is_what_one_token_at_a_time_gives() -> None:
    model = network(configuration("GA", 32), 3).eval()
    with torch.no_grad():  # apart from the embedding, or each word would be said again and again
        model.model.norm.weight.copy_(3 * torch.randn(32))
    texts = [evaluate.prompted("Question: lark\n(A) old berth"), evaluate.prompted("Question:")]
    drafts = [encode(" old berth (A)"), []]
    expected = []
    for text in texts:
        said: list[int] = []
        while len(said) < evaluate.NEW_TOKENS and ids()["<|end|>"] not in said:
            ((token,),) = evaluate.likeliest(model, [text + said], [[0]])
            said.append(token)
        expected.append(said)
    assert evaluate.decoded(model, texts, drafts) == expected
    assert len({token for said in expected for token in said}) > 8


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("amber lark: old berth (B). The correct answer is (B)", "B"),
        ("The correct answer is C", "C"),
        ("amber lark: old berth (B)", ""),
    ],
)
def test_an_answer_is_read_by_the_official_rules(
    said: str, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = [*(ids()[sign] for sign in said), ids()["<|end|>"]]
    monkeypatch.setattr(evaluate, "decoded", lambda _, texts, __: [spoken] * len(texts))
    samples = generate(GeneratorOptions(samples=6, max_tokens=2000, seed=9)).samples
    assert evaluate.answered(None, samples) == [letter] * 6
    marks = evaluate.marks(None, samples)
    assert marks.invalid == (0.0 if letter else 100.0)
    assert marks.accuracy == round(100 * sum(e.answer == letter for e in samples) / 6, 1)


@pytest.mark.nightly(reason="half a minute of training")
@pytest.mark.slow(reason="computes with torch models")
def test_an_exam_without_knowledge_is_marked_by_kind(
    course: train.Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "NEW_TOKENS", 2)  # it has nothing to say
    samples = generate(GeneratorOptions(samples=12, max_tokens=2000, seed=9)).samples
    marks = evaluate.marks(course.model.eval(), samples)
    assert marks.samples == 12
    assert set(marks.groups) >= {"easy", "hard", "short", "medium", "long"}
    assert 0 <= marks.accuracy <= 100 - marks.invalid


def test_a_foreign_document_is_of_the_same_domain() -> None:
    samples = generate(GeneratorOptions(samples=12, max_tokens=2000, seed=9)).samples
    for mine, other in zip(samples, evaluate.foreign(samples), strict=True):
        assert mine.question == other.question
        assert other.context in {each.context for each in samples if each.domain == mine.domain}
        assert other.context != mine.context
