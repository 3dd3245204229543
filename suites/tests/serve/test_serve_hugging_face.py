"""A tiny Hugging Face model behind the server: text, chances, sampling, images, and its answers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("torch", reason="the extra hf is not installed")
pytest.importorskip("transformers", reason="the extra hf is not installed")

import torch
import transformers

from kvproof.harness.cli.actions.serving import models as serve_models
from kvproof.harness.cli.actions.serving import serve
from kvproof.harness.cli.arguments.serve import ServeOptions
from kvproof.harness.errors import UsageError
from kvproof.reference.model_runner.images import Images
from kvproof.reference.server.language.hugging_face_images import Picture
from kvproof.reference.server.language.hugging_face_sampling import (
    NoNumbers,
    choose,
    kept,
    penalized,
)
from kvproof.reference.server.language.language import Prepared, SamplingOptions
from kvproof.reference.server.language.token_text import GrowingText, TokenBytes
from kvproof.suites.tests.lab.stress.http import tiny
from kvproof.suites.tests.lab.stress.http.malformed import data_url
from kvproof.suites.tests.lab.stress.http.process import Server, serving

PROMPT = "a prompt of a few blocks, for which every token counts"
SPECIAL = {name: place for place, name in enumerate(tiny.SPECIAL)}
CACHE = ("--block-size", "16", "--num-blocks", "200", "--max-model-len", "512")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save("qwen3", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving("--model", str(folder), *CACHE) as running:
        yield running
        assert running.end() == 0
        assert running.errors() == ""


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def tokens(text: str) -> list[int]:
    return [tiny.FIRST + byte for byte in text.encode()]


def chat(server: Server, content: Any, **fields: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
    return server.send("POST", "/v1/chat/completions", body | fields)


def complete(server: Server, **fields: Any) -> Any:
    wish = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}
    return server.complete(**wish | fields)


@pytest.mark.slow(reason="computes with torch models")
def test_answers_and_their_chances_are_those_of_transformers(server: Server, model: Any) -> None:
    choice = complete(server, logprobs=3, return_token_ids=True)["choices"][0]
    with torch.no_grad():
        said = model.generate(torch.tensor([tokens(PROMPT)]), max_new_tokens=12, do_sample=False,
                              eos_token_id=None)[0]  # fmt: skip
        logits = model(said[None]).logits[0].log_softmax(-1)
    first = len(PROMPT)
    assert choice["prompt_token_ids"] == tokens(PROMPT)
    assert choice["token_ids"] == said[first:].tolist()
    want = [float(logits[first - 1 + n, token]) for n, token in enumerate(said[first:])]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(want, abs=1e-3)
    assert all(len(each) == 3 for each in choice["logprobs"]["top_logprobs"])


def test_an_echo_tells_the_chances_of_the_prompt_despite_a_hit(server: Server, model: Any) -> None:
    complete(server)
    answer = complete(server, echo=True, logprobs=1, max_tokens=1)
    reported = answer["choices"][0]["logprobs"]
    with torch.no_grad():
        logits = model(torch.tensor([tokens(PROMPT)])).logits[0].log_softmax(-1)
    want = [float(logits[n, token]) for n, token in enumerate(tokens(PROMPT)[1:])]
    assert reported["token_logprobs"][0] is None
    assert reported["token_logprobs"][1 : len(PROMPT)] == pytest.approx(want, abs=1e-2)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert "".join(reported["tokens"][: len(PROMPT)]) == PROMPT


def test_a_hit_changes_nothing(server: Server) -> None:
    prompt = "a prompt without any history, " * 3
    first = complete(server, prompt=prompt, logprobs=5)
    again = complete(server, prompt=prompt, logprobs=5)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    one, two = (each["choices"][0]["logprobs"]["token_logprobs"] for each in (first, again))
    assert two == pytest.approx(one, abs=1e-3)


def test_a_chat_goes_through_the_template(server: Server) -> None:
    reported = chat(server, "hi", max_tokens=4, return_token_ids=True).json
    assert reported["choices"][0]["prompt_token_ids"] == [
        SPECIAL["<s>"], SPECIAL["<user>"], *tokens("hi"), SPECIAL["<end>"], SPECIAL["<assistant>"]
    ]  # fmt: skip


def test_a_seed_gives_the_same_answer_whatever_else_runs(server: Server) -> None:
    wish = {"temperature": 1.5, "seed": 7}
    alone = complete(server, **wish)["choices"][0]["text"]
    others = [complete(server, temperature=1.5, seed=seed)["choices"][0]["text"] for seed in (8, 9)]
    together = complete(server, prompt=[PROMPT, "another", "third"], **wish)["choices"][0]["text"]
    assert together == alone
    assert len({alone, *others}) == 3


def test_n_answers_have_seeds_of_their_own(server: Server) -> None:
    wish: dict[str, Any] = {"temperature": 1.5, "return_token_ids": True}
    prompts = [PROMPT, "another prompt, of more than sixteen letters"]
    found = complete(server, prompt=prompts, n=3, seed=7, **wish)
    assert [each["index"] for each in found["choices"]] == [*range(6)]
    for place, each in enumerate(found["choices"]):
        alone = complete(server, prompt=prompts[place // 3], seed=7 + place % 3, **wish)
        assert alone["choices"][0]["token_ids"] == each["token_ids"]
    assert len({each["text"] for each in found["choices"]}) == 6
    usage, asked = found["usage"], sum(map(len, prompts))
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (asked, 6 * 12)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def test_biases_and_penalties_change_what_is_likeliest(server: Server) -> None:
    plain = complete(server, return_token_ids=True, logprobs=0)["choices"][0]
    first = plain["token_ids"][0]
    banned = complete(server, return_token_ids=True, logit_bias={str(first): -100})["choices"][0]
    assert first not in banned["token_ids"]
    forced = complete(server, return_token_ids=True, logprobs=0, logit_bias={"65": 100})
    choice = forced["choices"][0]
    assert choice["token_ids"] == [65] * 12
    # log-probabilities are those of the model, before biases
    assert all(each < -1 for each in choice["logprobs"]["token_logprobs"])
    once = complete(server, return_token_ids=True, top_k=1, temperature=1.9, seed=3)["choices"][0]
    assert once["token_ids"] == plain["token_ids"]
    sure = complete(server, return_token_ids=True, min_p=1, temperature=1.9, seed=3)["choices"][0]
    assert sure["token_ids"] == plain["token_ids"]


def test_repetitions_are_penalized_as_by_transformers(server: Server, model: Any) -> None:
    prompt = torch.tensor([tokens(PROMPT)])
    plain = complete(server, return_token_ids=True)["choices"][0]["token_ids"]
    with torch.no_grad():
        wanted = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None,
                                repetition_penalty=5.0)[0, len(PROMPT) :].tolist()  # fmt: skip
    found = complete(server, return_token_ids=True, repetition_penalty=5)["choices"][0]
    assert found["token_ids"] == wanted != plain


def test_a_template_shows_tools_and_takes_variables(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    fields: dict[str, Any] = {
        "max_tokens": 1, "return_token_ids": True, "tools": [tool], "tool_choice": "auto",
        "chat_template_kwargs": {"thinking": "no"},
    }  # fmt: skip
    choice = chat(server, "hi", **fields).json["choices"][0]
    assert choice["prompt_token_ids"] == [
        SPECIAL["<s>"], SPECIAL["<system>"], *tokens("weather"), SPECIAL["<user>"], *tokens("hi"),
        SPECIAL["<end>"], SPECIAL["<assistant>"], *tokens("no"),
    ]  # fmt: skip
    for extra, param in (
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"think": 1}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ):
        refused = chat(server, "hi", **fields | extra)
        assert (refused.status, refused.json["error"]["param"]) == (400, param)


def test_pictures_are_refused_by_a_model_without_eyes(server: Server) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    reply = chat(server, [part])
    assert reply.status == 400
    assert "reads no images" in reply.json["error"]["message"]


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="computes with torch models")
def test_a_folder_without_a_tokenizer_takes_token_ids(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with serving("--model", str(tmp_path), "--served-model-name", "tiny", *CACHE) as running:
        refused = running.send("POST", "/v1/completions", {"model": "tiny", "prompt": "text"})
        assert (refused.status, refused.json["error"]["message"]) == (
            400,
            "the model's folder has no tokenizer: send token ids",
        )
        answer = complete(running, prompt=[9, 10, 11], return_token_ids=True)
        assert len(answer["choices"][0]["token_ids"]) == 12


@pytest.mark.slow(reason="computes with torch models")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nowhere"}, "it has no config.json"),
        ({"dtype": "int8"}, "dtype 'int8' must be one of auto, float32"),
        ({"device": "toaster"}, "device 'toaster' cannot be used"),
        ({"memory": "100"}, "memory '100' must be at least two blocks of"),
        ({"memory": "lots"}, "memory 'lots' must be bytes, or a number with one of"),
        ({"max_model_len": 100_000}, "max_model_len 100000 must be from 2 to the 2048 tokens"),
    ],
)
def test_what_cannot_be_served_is_a_usage_error(
    options: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        serve.serve(ServeOptions(**{"model": str(folder)} | options))


@pytest.fixture
def build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any, str]]:
    """Return the engine, the language and the name that `serve` would run with these options."""
    seen: list[tuple[Any, Any, str]] = []

    def run(built: Any, config: Any, bound: Any, name: str) -> None:
        bound.close()
        seen.append((built[0], built[1], name))

    def made(**options: Any) -> tuple[Any, Any, str]:
        serve.serve(ServeOptions(model=str(folder), port=0, **options))
        return seen.pop()

    monkeypatch.setattr(serve, "_run", run)
    return made


def test_options_of_the_model_reach_it(folder: Path, build: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"memory": "1MiB", "block_size": 8, "kernel_block_size": 4}
    options |= {"dtype": "float64", "mode": "batched", "max_model_len": 100, "num_drafts": 0}
    engine, language, name = build(**options)
    cache = engine.config.cache
    # one block: keys and values of 2 heads of 16 float64, 4 layers, 8 tokens
    assert cache.num_blocks == (1 << 20) // (2 * 2 * 16 * 8 * 4 * 8)
    assert (cache.block_size, cache.layout.groups[0].kernel_size) == (8, 4)
    assert (language.model.mode, language.max_len, name) == ("batched", 100, folder.name)
    assert next(language.model.forward._model.parameters()).dtype == torch.float64


def test_the_attention_reaches_the_model(build: Callable[..., Any]) -> None:
    cache: dict[str, Any] = {"num_blocks": 100, "block_size": 8, "kernel_block_size": 4}
    engine, language, _ = build(dtype="bfloat16", attention="paged", **cache)
    assert engine.generate([tokens(PROMPT)], max_new_tokens=4)
    assert language.model.forward.paged_rows == 3
    with pytest.raises(UsageError, match=r"entries are torch\.float32"):
        build(attention="paged", **cache)


# --- images ---


SEEING = (
    "gemma3_vl",
    pytest.param("qwen3_vl", marks=pytest.mark.slow(reason="a server with a torch model")),
    pytest.param("qwen2_5_vl", marks=pytest.mark.slow(reason="a server with a torch model")),
)
"""Images of one size; patches with a deep stack; windows of patches."""


@pytest.fixture(scope="module", params=SEEING)
def eyes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Server]]:
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    made = tiny.save(request.param, tmp_path_factory.mktemp("models") / "tiny")
    with serving("--model", str(made), *CACHE) as running:
        yield made, running
        assert running.end() == 0
        assert running.errors() == ""


def png(color: tuple[int, int, int]) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (50, 40), color).save(data, "PNG")
    return data.getvalue()


def look(
    server: Server, *images: bytes, text: str = "what is on this picture, if anything?"
) -> Any:
    parts: list[Any] = [{"type": "text", "text": text}]
    parts += [{"type": "image_url", "image_url": {"url": data_url(each)}} for each in images]
    parts.append({"type": "text", "text": "and what else is there to be seen?"})
    return chat(server, parts, max_tokens=8, ignore_eos=True, return_token_ids=True)


RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="computes with torch models")
def test_images_answer_as_in_transformers(eyes: tuple[Path, Server]) -> None:
    """Pixels and placeholders are the test's own; the answer is that of `generate`."""
    from PIL import Image

    folder, server = eyes
    choice = look(server, png(RED), png(BLUE)).json["choices"][0]
    images = [Image.new("RGB", (50, 40), each) for each in (RED, BLUE)]
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    shown = dict(processor(images=images, return_tensors="pt"))
    shown.pop("num_crops", None)
    ids = torch.tensor([choice["prompt_token_ids"]])
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder).eval()
    types = (ids == model.config.image_token_id).long()
    grid = shown.get("image_grid_thw")
    assert types.sum() == (2 * 16 if grid is None else int(grid.prod(-1).sum()) // 4)
    kind = "token_type_ids" if grid is None else "mm_token_type_ids"
    with torch.no_grad():
        said = model.generate(ids, **shown, **{kind: types}, max_new_tokens=8,
                              do_sample=False, eos_token_id=None)[0]  # fmt: skip
    assert choice["token_ids"] == said[ids.shape[1] :].tolist()


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="computes with torch models")
def test_equal_images_hit_and_others_do_not(eyes: tuple[Path, Server]) -> None:
    _, server = eyes
    first = look(server, png(RED), text="hits").json
    same = look(server, png(RED), text="hits").json
    other = look(server, png(BLUE), text="hits").json
    ids = [each["choices"][0]["token_ids"] for each in (first, same, other)]
    assert ids[0] == ids[1] != ids[2]
    cached = [each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (same, other)]
    prompt = first["choices"][0]["prompt_token_ids"]
    place = prompt.index(370)
    assert cached[0] >= place + prompt.count(370)
    assert cached[1] <= place


def test_images_that_cannot_be_read_are_refused(eyes: tuple[Path, Server]) -> None:
    _, server = eyes
    broken = look(server, png(RED)[:60])
    assert (broken.status, broken.json["error"]["type"]) == (400, "invalid_request_error")
    assert "cannot be decoded" in broken.json["error"]["message"]
    spelled = look(server, text="<image>")
    assert spelled.status == 400
    assert "placeholder" in spelled.json["error"]["message"]
    placeholder = {"model": "tiny", "prompt": [9, 370, 9]}
    assert server.send("POST", "/v1/completions", placeholder).status == 400
    assert look(server, png(RED)).status == 200


def test_pictures_that_could_not_be_given_take_none_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    language = serve_models.hugging_face(
        ServeOptions(model=str(tiny.save("gemma3_vl", tmp_path / "tiny")), num_blocks=9)
    ).language
    images, one = language.model.images, torch.zeros(1)

    def show(request_id: str, *names: str) -> None:
        pictures = tuple(Picture(name, one, None) for name in names)
        language.begin(request_id, Prepared((), (), pictures), SamplingOptions())

    def full(content: str, *rest: Any) -> None:
        if content == "cat":
            raise MemoryError
        Images.add(images, content, *rest)

    show("live", "dog", "cat")
    with monkeypatch.context() as patch:
        patch.setattr(images, "add", full)
        with pytest.raises(MemoryError):
            show("unlucky", "dog", "cat", "owl")
    language.end("unlucky")
    assert sorted(images._pixels) == ["cat", "dog"]
    show("later", "owl")
    assert "owl" in images._pixels
    for name in ("live", "later", "later"):
        language.end(name)
    assert images._pixels == {}


# --- the parts ---


def test_text_of_any_language_grows_without_being_taken_back() -> None:
    tokenizer = tiny.tokenizer()
    text = "aü€😀 naïve 東京"
    growing = GrowingText(tokenizer)
    pieces = [growing.add(token) for token in tokens(text)]
    assert "".join(pieces) + growing.end() == text
    assert all(not piece or not piece.endswith("\ufffd") for piece in pieces)
    assert TokenBytes(tokenizer).of(tokens("é")[0]) == "é".encode()[:1]
    assert TokenBytes(tokenizer).of(2) == b"</s>"


def test_logits_are_changed_as_by_transformers() -> None:
    """Its processors are the other opinion on penalties, `top_k` and `min_p`."""
    made = torch.Generator().manual_seed(3)
    logits = torch.randn(60, generator=made) * 3
    known, prompt = torch.randint(60, (40,), generator=made), 25
    repeat = transformers.RepetitionPenaltyLogitsProcessor(1.7)(known[None], logits[None])[0]
    options = SamplingOptions(repetition_penalty=1.7, logit_bias=((59, 0.0),))
    assert torch.equal(penalized(options, known.tolist(), prompt, logits), repeat)
    both = SamplingOptions(presence_penalty=0.5, frequency_penalty=-0.25, logit_bias=((3, 7.5),))
    want = logits.clone()
    want[3] += 7.5
    for token in set(known[prompt:].tolist()):
        want[token] -= 0.5 - 0.25 * known[prompt:].tolist().count(token)
    assert penalized(both, known.tolist(), prompt, logits) == pytest.approx(want.numpy(), abs=1e-5)
    for name, warper in (
        ("top_k", transformers.TopKLogitsWarper(7)), ("min_p", transformers.MinPLogitsWarper(0.05))
    ):  # fmt: skip
        value = 7 if name == "top_k" else 0.05
        due = warper(None, logits[None])[0]
        assert torch.equal(kept(SamplingOptions(**{name: value}), logits), due)
        assert 0 < int(due.isfinite().sum()) < 60


def draw(position: int, logits: Any, **options: Any) -> int:
    sampling = SamplingOptions(**{"temperature": 1.0, "seed": 5} | options)
    return choose(sampling, [0] * position, 0, logits).token


@pytest.mark.slow(reason="computes with torch models")
def test_drawn_tokens_have_their_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -3.0])
    counts = torch.zeros(4)
    for position in range(4000):
        counts[draw(position, logits)] += 1
    assert counts / 4000 == pytest.approx(logits.softmax(-1).numpy(), abs=0.03)
    cut = {draw(position, logits, top_p=0.8) for position in range(500)}
    assert cut == {1, 2}


@pytest.mark.slow(reason="computes with torch models")
def test_what_reads_freed_memory_fails_instead_of_answering() -> None:
    with pytest.raises(NoNumbers, match="position 3"):
        draw(3, torch.tensor([0.0, float("nan")]), temperature=0.0)
