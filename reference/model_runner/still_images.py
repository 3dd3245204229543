"""Chats with images where transformers cannot make its own processor, for want of torchvision.

The processors of several families read videos as well, which takes torchvision. Images alone do
not: their pixels come from the family's image processor, and each one's placeholder in the
template is repeated once for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import AutoImageProcessor

from kvproof.reference.model_runner.specs import UnsupportedModel


class StillImages:
    """As much of a processor as a chat with images needs."""

    def __init__(self, folder: str, tokenizer: Any, placeholder: int | None, reason: str) -> None:
        """`placeholder`: token of an image; `reason`: why images are not supported.

        Raises UnsupportedModel if the token count of an image is unknown for the family.
        """
        self.image_processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        self._merged = getattr(self.image_processor, "merge_size", 0) ** 2
        if placeholder is None or tokenizer is None or not self._merged:
            raise UnsupportedModel(f"the processor of this model cannot be made: {reason}")
        self._tokenizer, self._placeholder = tokenizer, placeholder

    @property
    def chat_template(self) -> str | None:
        """See the tokenizer's."""
        template: str | None = self._tokenizer.chat_template
        return template

    def apply_chat_template(
        self, turns: Sequence[dict[str, Any]], **options: Any
    ) -> dict[str, list[list[int]]]:
        """Return `input_ids` of one chat, a list in a list; `options` as in transformers."""
        options |= {"tokenize": False, "return_dict": False}
        text = self._tokenizer.apply_chat_template(turns, **options)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        images = [part["image"] for turn in turns for part in turn["content"] if "image" in part]
        return {"input_ids": [list(self._repeated(ids, images))]}

    def _repeated(self, ids: Sequence[int], images: Sequence[Any]) -> Iterator[int]:
        left = iter(images)
        for token in ids:
            image = next(left, None) if token == self._placeholder else None
            yield from [token] * (1 if image is None else self._tokens(image))

    def _tokens(self, image: Any) -> int:
        width, height = image.size
        patches: int = self.image_processor.get_number_of_image_patches(height, width, {})
        return patches // self._merged
