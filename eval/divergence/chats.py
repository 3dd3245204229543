"""Chats with images: what no completion of a text can ask."""

from __future__ import annotations

import hashlib
import random
from typing import Any, TypeAlias

import msgspec

from kvproof.eval.divergence.prompts import Text
from kvproof.harness.http.completion_client import CompletionClient, Prompt, Reply
from kvproof.harness.served.images import TILES, data_url, new_image
from kvproof.harness.served.request_log import Content

_WORDS = ("harbour", "lantern", "meadow", "copper", "violin", "orchard", "glacier", "saddle")
_SHARED, _TAIL = 60, 12
"""Words after the images of all chats of a scene, and of the second one alone."""


class Chat(msgspec.Struct, frozen=True):
    """One message: images, then a text."""

    images: tuple[str, ...]
    """Data URLs."""
    text: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The message in OpenAI's form."""
        shown = [{"type": "image_url", "image_url": {"url": each}} for each in self.images]
        return [{"role": "user", "content": [*shown, {"type": "text", "text": self.text}]}]

    @property
    def content(self) -> Content:
        """Content that a cache may reuse: digests of the images, then characters."""
        digests = (hashlib.sha256(each.encode()).hexdigest() for each in self.images)
        return (*digests, *self.text)


Question: TypeAlias = "Prompt | Chat"


def content_of(asked: Question) -> Content:
    """Return what a cache may reuse of a prompt."""
    return asked.content if isinstance(asked, Chat) else asked


def asked_of(
    client: CompletionClient,
    question: Question,
    tokens: int,
    top: int | None,
    fields: dict[str, Any],
) -> Reply:
    """Have a prompt answered by so many tokens, with the `top` likeliest ones of each place."""
    if not isinstance(question, Chat):
        return client.complete(question, max_tokens=tokens, logprobs=top, **fields)
    scored = {} if top is None else {"logprobs": True, "top_logprobs": top}
    return client.chat(question.messages, max_tokens=tokens, **scored, **fields)


def opening(client: CompletionClient, top: int | None) -> int:
    """Return the tokens of a chat of one word, more than stand before an image; 0: sees none.

    A server sees images if one adds tokens to a chat, and its answer has log-probabilities.
    """
    shown = asked_of(client, Chat(_some(0)[:1], "a"), 1, top, {})
    if not shown.tokens:
        return 0
    alone = asked_of(client, Chat((), "a"), 1, top, {}).usage.prompt_tokens or 0
    return alone if (shown.usage.prompt_tokens or 0) > alone else 0


def image_scene(seed: str) -> dict[Text, Chat]:
    """Draw two chats about two images, and one with the images in the other order."""
    rng = random.Random(seed)  # noqa: S311 - drawn to be repeated
    one, other = _some(seed)
    shared, tail = (" ".join(rng.choices(_WORDS, k=count)) for count in (_SHARED, _TAIL))
    return {
        "begun": Chat((one, other), shared),
        "continued": Chat((one, other), f"{shared} {tail}"),
        "elsewhere": Chat((other, one), shared),
    }


def _some(seed: object) -> tuple[str, str]:
    rng = random.Random(f"{seed} images")  # noqa: S311 - drawn to be repeated
    one, other = (data_url(new_image(rng.randbytes(3 * TILES * TILES))) for _ in range(2))
    return one, other
