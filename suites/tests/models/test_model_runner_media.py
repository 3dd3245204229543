"""Images and experts: encoded once and shown where they belong; recorded, returned, replayed."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.models.model_kit import open_engine, serve, shared, text, torch

from kvproof.reference.core.identity import Namespace, Span  # isort: skip
from kvproof.reference.model_runner.experts import MissingRouter, expert_blocks, replayed  # isort: skip
from kvproof.reference.model_runner.images import MissingImage  # isort: skip
from kvproof.reference.model_runner.oracle import truth  # isort: skip
from kvproof.suites.tests.lab.parity.prompts import with_picture  # isort: skip

FAMILIES = ("qwen3_vl", "qwen2_5_vl", "qwen3_5_moe_vl", "gemma3_vl")


def ask(engine, name, asked, *, new=2):
    for picture in asked.pictures:
        engine.model.images.add(picture.span.content, picture.pixels, picture.grid)
    spans = [picture.span for picture in asked.pictures]
    assert engine.add_request(name, asked.tokens, max_new_tokens=new, spans=spans) is None
    answer = ()
    while engine.busy:
        for output in engine.step():
            answer = output.tokens
    return answer


# --- images ---


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_is_encoded_once_however_often_it_is_shown(family):
    engine, _ = open_engine(family)
    model = shared(family).model
    for number in range(3):  # behind another text each time: nothing is hit
        ask(engine, str(number), with_picture(model, text(20, seed=number), 1, text(9)))
    assert engine.model.images.encoded == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_two_images_in_one_chunk_are_two_images(family):
    engine, logits = open_engine(family, chunk=64)
    model = shared(family).model
    first = with_picture(model, text(5), 1, ())
    second = with_picture(model, (*first.tokens, *text(3)), 2, text(7))
    both = second._replace(pictures=first.pictures + second.pictures)
    ask(engine, "a", both, new=1)
    assert [start for start, _ in logits["a"]] in ([0], [0, 48]), "recurrent ones save at 48"
    ours = torch.cat([values for _, values in logits["a"]])
    right = truth(model, both.tokens, pictures=both.pictures).logits
    assert (ours - right).abs().max() < 1e-3
    one, two = both.pictures
    swapped = one._replace(pixels=two.pixels), two._replace(pixels=one.pixels)
    other = truth(model, both.tokens, pictures=swapped).logits
    assert (ours - other).abs().max() > 0.1, "which image stands where is not seen"


def test_an_image_that_nobody_gave_is_missed():
    engine, _ = open_engine("qwen3_vl")
    asked = with_picture(shared("qwen3_vl").model, text(4), 1, text(4))
    spans = [picture.span for picture in asked.pictures]
    engine.add_request("a", asked.tokens, max_new_tokens=1, spans=spans)
    with pytest.raises(MissingImage, match="no pixels for the image at token 5"):
        engine.step()


def test_an_image_is_encoded_only_if_the_step_says_so():
    engine, _ = open_engine("qwen3_vl")
    launch = engine.model.launch

    def forgetful(step, works):
        launch(step, [work._replace(encode=()) for work in works])

    engine.model.launch = forgetful
    with pytest.raises(MissingImage, match="does not encode the image at token 5"):
        ask(engine, "a", with_picture(shared("qwen3_vl").model, text(4), 1, text(4)))


def test_a_model_of_text_takes_no_images():
    engine, _ = open_engine("qwen3")
    with pytest.raises(MissingImage, match="takes no images"):
        engine.model.images.add("content", torch.zeros(1))


def test_features_are_kept_for_the_last_images_only():
    engine, _ = open_engine("gemma3_vl")
    images = engine.model.images
    images._keep = 2
    model = shared("gemma3_vl").model
    for number, seed in enumerate((1, 2, 3, 1)):
        ask(engine, str(number), with_picture(model, text(20, seed=number), seed, ()))
    assert images.encoded == 4


def test_pixels_go_with_the_last_request_that_shows_them():
    engine, _ = open_engine("gemma3_vl")
    images, model = engine.model.images, shared("gemma3_vl").model
    asked = with_picture(model, text(20), 1, ())
    content = asked.pictures[0].span.content
    for _ in range(2):
        ask(engine, "a", asked)
    images.drop(content)
    assert content in images._pixels
    images.drop(content)
    assert content not in images._pixels
    ask(engine, "b", with_picture(model, text(20, seed=9), 1, ()))
    assert images.encoded == 1, "features outlive the pixels"


@pytest.mark.parametrize("kind", ["video", "embeds"])
def test_spans_that_cannot_be_shown_are_no_silent_success(kind):
    engine, _ = open_engine("qwen3_vl")
    engine.add_request("a", text(8), max_new_tokens=1, spans=[Span(kind, 3, 1, "content")])
    with pytest.raises(MissingImage, match=f"a span of kind '{kind}': only images"):
        engine.step()


def test_images_of_unequal_size_need_their_grid():
    engine, _ = open_engine("qwen3_vl")
    with pytest.raises(MissingImage, match="the grid of patches is needed"):
        engine.model.images.add("content", torch.zeros(64, 96))


# --- experts ---


def test_experts_are_recorded_only_if_asked_for():
    quiet, _ = open_engine("qwen3_moe")
    serve(quiet, "a", text(20))
    assert quiet.model.forward._recorder is None
    engine, _ = open_engine("qwen3_moe", return_routed_experts=True)
    engine.add_request("a", text(50), max_new_tokens=4)
    done = None
    while engine.busy:
        for output in engine.step():
            done = output
    rows = done.experts.rows
    assert rows.shape == (53, 4, 2)
    right = truth(shared("qwen3_moe").model, (*text(50), *done.tokens[:-1])).experts
    assert (rows == right.numpy()).all()


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "glm_moe_dsa", "gpt_oss"])
def test_replay_follows_any_choice(family):
    model = shared(family).model
    tokens, blocks = text(40), expert_blocks(shared(family).model)
    generator = torch.Generator().manual_seed(1)
    shape = (1, len(tokens), len(blocks), blocks[0].choices)
    wanted = torch.rand(shape, generator=generator).argsort(-1)[..., :2]
    with replayed(model, wanted):
        assert torch.equal(truth(model, tokens).experts, wanted[0])
    free = truth(model, tokens)
    assert not torch.equal(free.experts, wanted[0]), "the router still does as it was told"


def routed(engine, name, tokens, *, new=6, salt=None):
    space = Namespace(salt=salt)
    engine.add_request(name, tokens, max_new_tokens=new, namespace=space)
    done = None
    while engine.busy:
        for output in engine.step():
            done = output
    return done


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next", "deepseek_v3"])
@pytest.mark.parametrize("mode", ["exact", "batched"])
def test_a_request_is_routed_as_recorded(family, mode):
    """R4: the engine replays whole requests, chunk by chunk, and then goes on by itself."""
    engine, logits = open_engine(family, return_routed_experts=True)
    free = routed(engine, "free", text(50))
    rows = torch.as_tensor(free.experts.rows.astype("int64"))
    again, same = open_engine(family, mode=mode, return_routed_experts=True)
    again.model.replays["same"] = rows
    assert routed(again, "same", text(50)).tokens == free.tokens
    ends = [torch.cat([values for _, values in found]) for found in (logits["free"], same["same"])]
    assert torch.equal(*ends)
    others = (rows[:40] + 1) % 8
    again.model.replays["other"] = others
    found = routed(again, "other", text(50), salt="replayed")
    reported = torch.as_tensor(found.experts.rows.astype("int64"))
    assert torch.equal(reported[:40], others)
    assert [start for start, _ in same["other"]][:3] == [0, 32, 40]
    assert not torch.equal(reported[40:45], (rows[40:45] + 1) % 8)


def test_a_router_that_cannot_be_told_is_no_silent_success(monkeypatch):
    model = shared("qwen3_moe").model
    rows = truth(model, text(10)).experts[None]
    monkeypatch.setattr("kvproof.reference.model_runner.experts._count", lambda _: 7)
    with (
        pytest.raises(MissingRouter, match="takes no top-k over its 7 experts"),
        replayed(model, rows),
    ):
        truth(model, text(10))
