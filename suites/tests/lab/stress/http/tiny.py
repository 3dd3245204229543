"""A folder with a tiny Hugging Face model, a byte tokenizer and a chat template.

python -m kvproof.suites.tests.lab.stress.http.tiny qwen3 FOLDER

The weights are random, those of the parity suite's tiny models; answers have no meaning, yet they
depend on the whole cache.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
)

from kvproof.reference.server.language.token_text import BYTE_LETTERS
from kvproof.suites.tests.lab.parity.tiny_models import IMAGE, IMAGE_END, IMAGE_START, build

FIRST = 8
"""Id of byte 0; the ids before are those of special tokens."""
SPECIAL = ("<pad>", "<s>", "</s>", "<user>", "<assistant>", "<system>", "<end>", "<unused>")
TEMPLATE = """\
{{ '<s>' }}{% for tool in tools or [] %}{{ '<system>' + tool['function']['name'] }}{% endfor %}\
{% for m in messages %}{{ '<' + m['role'] + '>' }}\
{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}\
{{ '<image-begins>' if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}\
{{ '<end>' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}\
{% if thinking is defined %}{{ thinking }}{% endif %}"""


IMAGES = {"image_token": "<image>", "boi_token": "<image-begins>", "eoi_token": "<image-ends>"}
"""For families with images; their ids are those of the tiny models."""
PATCHES = {
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_5_moe_vl": "Qwen3VLProcessor",
}
"""Family -> processor, if images are cut into patches without resizing."""
_PLACES = {"<image>": IMAGE, "<image-begins>": IMAGE_START, "<image-ends>": IMAGE_END}


def tokenizer(*, images: bool = False) -> Any:
    """Return a tokenizer for which each byte is a token."""
    letters = {letter: FIRST + byte for letter, byte in BYTE_LETTERS.items()}
    special = {name: place for place, name in enumerate(SPECIAL)} | (_PLACES if images else {})
    made = Tokenizer(models.BPE(vocab=special | letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        extra_special_tokens=IMAGES if images else {},
    )  # fmt: skip
    wrapped.chat_template = TEMPLATE
    return wrapped


def save(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Write the folder; returns its path."""
    model = build(family, seed=seed)
    model.save_pretrained(folder)
    if family == "gemma3_vl":
        _processor(model.config).save_pretrained(folder)
    elif family in PATCHES:
        _save_patches(model.config.vision_config, folder, PATCHES[family])
    else:
        tokenizer().save_pretrained(folder)
    return folder


def _save_patches(vision: Any, folder: Path, processor: str) -> None:
    words = tokenizer(images=True)
    words.chat_template = TEMPLATE.replace("<image-begins>", "<image-begins><image><image-ends>")
    words.save_pretrained(folder)
    Qwen2VLImageProcessorPil(
        patch_size=vision.patch_size,
        temporal_patch_size=vision.temporal_patch_size,
        merge_size=vision.spatial_merge_size,
        size={"shortest_edge": 16 * 16, "longest_edge": 48 * 48},
    ).save_pretrained(folder)
    text = json.dumps({"processor_class": processor})
    (folder / "processor_config.json").write_text(text, encoding="utf-8")


def _processor(config: Any) -> Any:
    side, words = config.vision_config.image_size, tokenizer(images=True)
    pictures = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    return Gemma3Processor(
        pictures, words, chat_template=TEMPLATE, image_seq_length=config.mm_tokens_per_image
    )


if __name__ == "__main__":
    save(sys.argv[1], Path(sys.argv[2]))
