"""Folders become models, or are refused with the reason; it names whose fault it is."""

from __future__ import annotations

import json
from itertools import count

import pytest

from kvproof.suites.tests.models.model_kit import (
    open_engine,
    serve,
    shared,
    text,
    torch,
    transformers,
)

from kvproof.reference.engine.engine import Engine  # isort: skip
from kvproof.reference.engine.engine_config import EngineConfig  # isort: skip
from kvproof.reference.model_runner.families import REFUSED, TESTED  # isort: skip
from kvproof.reference.model_runner.loading import StillImages, load  # isort: skip
from kvproof.reference.model_runner.oracle import truth  # isort: skip
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config  # isort: skip
from kvproof.reference.model_runner.self_check import self_check  # isort: skip
from kvproof.reference.model_runner.specs import UnsupportedModel, probe  # isort: skip
from kvproof.suites.reference.parity.tiny_models import sharpen  # isort: skip
from kvproof.suites.tests.lab.parity.tiny_models import FAMILIES, build  # isort: skip

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with weights, a tokenizer of bytes, and a chat template."""
    path = tmp_path_factory.mktemp("model")
    shared("qwen3").model.save_pretrained(path)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number + 8 for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path


def test_a_folder_answers_as_the_model_that_was_saved(folder):
    loaded = load(folder)
    assert (loaded.family, loaded.tested, loaded.processor) == ("qwen3", True, None)
    config = cache_config(loaded.model, num_blocks=100, block_size=16, kernel_block_size=4)
    engine = Engine(EngineConfig(config, 32), HuggingFaceModel(loaded.model, config))
    assert serve(engine, "a", text(50), new=8) == serve(
        open_engine("qwen3")[0], "a", text(50), new=8
    )


def test_a_folder_brings_its_tokenizer_and_chat_template(folder):
    loaded = load(folder, check=False)
    assert loaded.check is None
    assert loaded.chats
    ids = loaded.chat([{"role": "user", "content": "how long?"}])
    assert loaded.tokenizer.decode(ids) == "<user>how long?<assistant>"


def test_a_folder_is_loaded_in_the_type_asked_for(folder):
    assert load(folder, dtype=torch.float64).model.dtype == torch.float64
    assert load(folder, dtype=torch.bfloat16).check.problem == ""


def test_a_folder_without_tokenizer_takes_token_ids(tmp_path):
    shared("llama").model.save_pretrained(tmp_path)
    loaded = load(tmp_path, check=False)
    assert (loaded.tokenizer, loaded.chats) == (None, False)
    with pytest.raises(UnsupportedModel, match="no chat template: use plain completions"):
        loaded.chat([{"role": "user", "content": "hello"}])


def test_a_folder_without_model_is_named(tmp_path):
    with pytest.raises(UnsupportedModel, match=r"has no config.json; for example a folder"):
        load(tmp_path / "nowhere")


def refused(path, **config):
    path.joinpath("config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel) as raised:
        load(path)
    message = str(raised.value)
    assert "deepseek_v32" in message, "the families that are tested are listed"
    assert "qwen3_5_moe" in message
    return message


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_a_family_that_cannot_run_says_why(tmp_path, family):
    if family not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    message = refused(tmp_path, model_type=family, architectures=["AnyForCausalLM"])
    assert f"family {family} {REFUSED[family]}" in message


def test_encoders_are_refused(tmp_path):
    message = refused(tmp_path, model_type="t5", architectures=["T5ForConditionalGeneration"])
    assert "family t5 has an encoder for text; only decoders run" in message


def test_models_that_write_nothing_are_refused(tmp_path):
    message = refused(tmp_path, model_type="bert", architectures=["BertForMaskedLM"])
    assert "family bert generates no text: its architectures are ['BertForMaskedLM']" in message


def test_unknown_families_and_code_in_folders_are_refused(tmp_path):
    assert "does not know the model" in refused(tmp_path, model_type="not_yet_written")
    message = refused(tmp_path, model_type="llama", architectures=["MyLlamaForCausalLM"])
    assert "has no MyLlamaForCausalLM; code that a folder brings along is not run" in message


@pytest.mark.parametrize("wrong", [{"model_type": []}, {"num_attention_heads": "x"}])
def test_a_damaged_configuration_is_refused(tmp_path, wrong):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert "config.json cannot be used" in refused(tmp_path, **{**config, **wrong})


def test_tested_families_are_those_of_the_zoo():
    assert {getattr(transformers, family.config).model_type for family in FAMILIES.values()} == {
        *TESTED
    }
    assert not {*TESTED} & {*REFUSED}


# --- the self-check ---


def mamba_1():
    """A hybrid whose scan forgets what came before a chunk: a fault of transformers."""
    config = transformers.JambaConfig(
        vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_experts=2, num_experts_per_tok=1,
        attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, use_mamba_kernels=False,
        pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.JambaForCausalLM(config).eval()
        for name, values in model.named_parameters():
            sharpen(name, values.detach())
    return model


def test_a_fault_of_transformers_is_called_one():
    check = self_check(mamba_1())
    version = transformers.__version__
    assert check.problem.startswith(
        f"family jamba is wrong in transformers {version}: a prompt in chunks changes logits by "
    )
    failed = {finding.name.partition(" (")[0] for finding in check.findings if not finding.passed}
    assert failed == {
        "a prompt in chunks",
        "a hit of 64 tokens, its state restored,",
    }
    assert {"paging", "a prompt token by token"} <= {each.name for each in check.findings}


def test_a_device_that_says_otherwise_each_time_is_not_blamed_on_paging(monkeypatch):
    made = count(1)

    def drifting(*args, **kwargs):
        right = truth(*args, **kwargs)
        return right._replace(logits=right.logits + 1e-6 * next(made))

    monkeypatch.setattr("kvproof.reference.model_runner.self_check.truth", drifting)
    problem = self_check(shared("qwen3").model).problem
    assert problem.startswith("family qwen3 is wrong in transformers ")
    assert ": the same prompt twice changes logits by " in problem


def test_a_fault_of_the_runner_is_called_one(monkeypatch):
    from kvproof.reference.model_runner.batch import Batch

    right = Batch.position_ids
    monkeypatch.setattr(Batch, "position_ids", lambda batch: right(batch) // 2)
    problem = self_check(shared("qwen3").model).problem
    assert problem.startswith("the runner does not reproduce family qwen3 of transformers ")


def test_a_folder_of_a_wrong_family_is_refused(tmp_path, monkeypatch):
    mamba_1().save_pretrained(tmp_path)
    monkeypatch.delitem(REFUSED, "jamba")
    with pytest.raises(UnsupportedModel, match="family jamba is wrong in transformers"):
        load(tmp_path)


def test_a_cache_of_an_unknown_kind_is_refused(monkeypatch):
    from transformers.cache_utils import DynamicLayer

    model = build("llama")
    odd = type("OddLayer", (DynamicLayer,), {})
    monkeypatch.setattr(
        "kvproof.reference.model_runner.specs.DynamicCache",
        lambda config: transformers.Cache(layers=[odd() for _ in range(4)]),
    )
    with pytest.raises(UnsupportedModel, match="layer 0 keeps its cache in a OddLayer"):
        probe(model)


# --- images without torchvision ---


@pytest.fixture
def seeing(tmp_path):
    pytest.importorskip("PIL", reason="the extra hf is not installed")
    from kvproof.suites.tests.lab.stress.http import tiny

    return tiny.save("qwen3_vl", tmp_path / "tiny")


def test_a_placeholder_is_repeated_for_each_token_of_its_image(seeing):
    from PIL import Image

    words = transformers.AutoTokenizer.from_pretrained(seeing)
    images = StillImages(str(seeing), words, 370, "no torchvision")
    shown = [{"type": "image", "image": Image.new("RGB", size)} for size in ((32, 32), (64, 16))]
    turn = {"role": "user", "content": [*shown, {"type": "text", "text": "hi"}]}
    made = images.apply_chat_template([turn], tokenize=True, add_generation_prompt=True)
    (ids,) = made["input_ids"]
    grids = [
        images.image_processor(images=[part["image"]], return_tensors="pt")["image_grid_thw"]
        for part in shown
    ]
    assert ids.count(370) == sum(int(grid.prod()) for grid in grids) // 4
    assert ids.count(372) == ids.count(373) == 2


def test_what_does_not_tell_its_tokens_is_refused(seeing):
    words = transformers.AutoTokenizer.from_pretrained(seeing)
    with pytest.raises(UnsupportedModel, match="cannot be made: no torchvision"):
        StillImages(str(seeing), words, None, "no torchvision")
