"""Families that are wrong are refused in 16 bits as in 32, with the reason that is true."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvproof.suites.tests.models.model_kit import shared, torch, transformers

from kvproof.suites.tests.lab.parity.tiny_models import build  # isort: skip
from kvproof.suites.tests.lab.stress.http import tiny  # isort: skip
from kvproof.reference.model_runner import short_copy as copying  # isort: skip
from kvproof.reference.model_runner.batch import Batch  # isort: skip
from kvproof.reference.model_runner.families import REFUSED, TESTED_WITH  # isort: skip
from kvproof.reference.model_runner.loading import load  # isort: skip
from kvproof.reference.model_runner.self_check import image_check, self_check  # isort: skip
from kvproof.reference.model_runner.short_copy import short_copy  # isort: skip
from kvproof.reference.model_runner.specs import UnsupportedModel  # isort: skip
from kvproof.suites.tests.models.odd_families import odd  # isort: skip

BOTH = (torch.float32, torch.bfloat16)
SEEN = {
    "mllama": "family mllama cannot be run on a cache of transformers: AttributeError",
    "paligemma": r"its tokens attend to later ones of the prompt \(prefix-LM attention\)",
    "recurrent_gemma": "(is wrong in transformers|does not reproduce) .*changes logits by",
    "rwkv": "family rwkv keeps nothing in a cache of transformers",
    "xlstm": "family xlstm cannot compute two tokens on a cache of transformers: AttributeError",
    "zamba": "family zamba is wrong in transformers .*: a prompt in chunks.* changes logits by",
}
"""Family -> what the self-check finds by itself, were it not refused by name."""


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("family", sorted(SEEN))
def test_a_wrong_family_is_refused_in_every_type(family, dtype, tmp_path, monkeypatch):
    odd(family).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=f"family {family} "):
        load(tmp_path, dtype=dtype)
    monkeypatch.delitem(REFUSED, family)
    with pytest.raises(UnsupportedModel, match=SEEN[family]):
        load(tmp_path, dtype=dtype)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_next", "mamba2"])
def test_right_families_load_in_16_bits_with_hits_that_were_compared(family):
    check = self_check(shared(family).model.to(torch.bfloat16))
    shared(family).model.to(torch.float32)
    assert (check.problem, check.missed) == ("", ())
    (hit,) = [each for each in check.findings if each.name.startswith("a hit of 64 tokens")]
    assert 0 <= hit.difference < hit.limit / 5
    assert ("state restored" in hit.name) == (family != "gemma3")
    assert ("beyond a window of 24" in hit.name) == (family == "gemma3")


def test_a_fault_behind_a_long_window_is_seen_in_the_copy(monkeypatch):
    """The prompt of the check leaves the window of the copy, and not that of the model."""
    model = build("gemma3", torch.bfloat16, sliding_window=4096)
    assert self_check(model).problem == ""
    right = Batch.visible

    def too_few(batch, group):
        seen = right(batch, group)
        return seen - 1 if seen < batch.past else seen

    monkeypatch.setattr(Batch, "visible", too_few)
    assert self_check(model).problem.startswith(
        "the runner does not reproduce family gemma3_text of transformers "
        f"{transformers.__version__}: a hit of 64 tokens beyond a window of 24 (float32, "
    )


def test_a_copy_has_the_first_layers_and_their_weights():
    model = build("llama", torch.bfloat16)
    copied = short_copy(model)
    assert (copied.layers, copied.of, copied.why_not) == (2, 4, "")
    theirs = dict(model.named_parameters())
    for name, values in copied.model.named_parameters():
        assert values.dtype == torch.float32
        assert torch.equal(values, theirs[name].float())
    assert model.dtype == torch.bfloat16


def test_without_memory_for_a_copy_the_notes_say_what_was_not_checked(monkeypatch, tmp_path):
    build("llama", torch.bfloat16).save_pretrained(tmp_path)
    monkeypatch.setattr(copying.os, "sysconf", lambda _: 64)
    loaded = load(tmp_path)
    assert [each.name for each in loaded.check.findings if "float32" in each.name] == []
    assert "not checked: no copy of it in float32 can be made: MemoryError" in loaded.notes[-1]


def test_weights_whose_answers_ignore_the_context_are_named():
    check = self_check(odd("zamba", sharp=False).to(torch.bfloat16))
    assert any("earlier tokens change the logits of these weights by nothing" in each
               for each in check.missed)  # fmt: skip


def test_the_start_names_what_was_tested(tmp_path):
    shared("llama").model.save_pretrained(tmp_path)
    first, second = load(tmp_path).notes
    assert first == (
        f"family llama: parity suite with transformers {' and '.join(TESTED_WITH)}; "
        f"now transformers {transformers.__version__}"
    )
    assert second.startswith("self-check: the same prompt twice; ")


# --- images ---


def test_an_image_is_compared_and_found_again(tmp_path):
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    loaded = load(tiny.save("qwen3_vl", tmp_path), dtype=torch.bfloat16)
    assert loaded.check.images == ""
    names = [each.name for each in loaded.check.findings if "image" in each.name]
    assert names == ["an image", "a hit of 80 tokens, over an image,"]


def test_images_that_the_runner_cannot_compute_are_refused_and_text_is_served(tmp_path):
    """The encoder of mistral3 takes the sizes of its images."""
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    model = odd("mistral3")
    model.save_pretrained(tmp_path)
    tiny.tokenizer(images=True).save_pretrained(tmp_path)
    eyes = transformers.PixtralImageProcessorPil(patch_size=8, size={"longest_edge": 32})
    eyes.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=torch.bfloat16)
    assert loaded.check.problem == ""
    assert loaded.notes[-1].startswith("not checked: images: ")
    findings, why = image_check(model, SimpleNamespace(image_processor=eyes))
    assert findings == []
    assert "an image cannot be computed by the runner: TypeError" in why
    assert "image_sizes" in why


def test_wrong_images_leave_the_text(tmp_path, monkeypatch):
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    from kvproof.reference.model_runner.images import Images

    right = Images._find_places
    monkeypatch.setattr(
        Images, "_find_places", lambda self, *given: (right(self, *given)[0] // 2, 0)
    )
    check = load(tiny.save("qwen3_vl", tmp_path)).check
    assert check.problem == ""
    assert check.images.startswith("the runner computes other logits for images: an image changes")
