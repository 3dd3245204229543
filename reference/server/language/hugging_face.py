"""A Hugging Face folder as a `Language`: its tokenizer, its chat template, its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.model.interface import Work
from kvproof.reference.model_runner.forward import Attention
from kvproof.reference.model_runner.loading import Loaded
from kvproof.reference.model_runner.page_map import page_map
from kvproof.reference.model_runner.runner import HuggingFaceModel, Mode
from kvproof.reference.model_runner.specs import probe
from kvproof.reference.server.language.hugging_face_images import opened, picture, spans_of
from kvproof.reference.server.language.hugging_face_sampling import choose, score_rows
from kvproof.reference.server.language.language import (
    Abilities,
    Chat,
    Detokenizer,
    Prepared,
    PromptError,
    SamplingOptions,
    Score,
)
from kvproof.reference.server.language.template_variables import settable
from kvproof.reference.server.language.token_text import GrowingText, TokenBytes

TOP_LOGPROBS = 20
UNLIMITED = 32_768
"""Longest request of a model that states no length."""


def block_bytes(model: Any, config: CacheConfig) -> int:
    """Return the bytes of one block, equal in all groups."""
    return page_map(probe(model).layers, config).block_bytes


class HuggingFaceText:
    """See `Language`."""

    def __init__(
        self,
        loaded: Loaded,
        config: CacheConfig,
        folder: Path,
        *,
        mode: Mode,
        attention: Attention = "gather",
        max_len: int = 0,
    ) -> None:
        """Raises ConfigError if the model is shorter than `max_len`, or not for `attention`."""
        self._loaded, self.name = loaded, folder.resolve().name
        self.model = HuggingFaceModel(
            loaded.model, config, mode=mode, attention=attention, choose=self._choose
        )
        text = loaded.model.config.get_text_config()
        self.vocabulary = int(text.vocab_size)
        self.max_len = _length(max_len, getattr(text, "max_position_embeddings", None))
        self.ends = _ends(loaded)
        unseen = loaded.check.images if loaded.check else ""
        shows = loaded.processor is not None and loaded.chats and not unseen
        self._image_token = getattr(loaded.model.config, "image_token_id", None) if shows else None
        names = ("image_token_id", "video_token_id", "audio_token_id")
        self._placeholders = {getattr(loaded.model.config, name, None) for name in names} - {None}
        self.abilities = Abilities(
            sampling=True,
            top_logprobs=TOP_LOGPROBS,
            prompt_logprobs=True,
            images=self._image_token is not None,
            no_images=unseen,
            chat=loaded.chats,
            template=settable(loaded.template),
            experts=config.return_routed_experts,
        )
        self._bytes = TokenBytes(loaded.tokenizer) if loaded.tokenizer else None
        self._sampling: dict[str, SamplingOptions] = {}
        self._prompt_lengths: dict[str, int] = {}
        self._scores: dict[str, list[Score]] = {}
        self._prompts: dict[str, tuple[int, ...]] = {}
        """Prompts of the requests that want scores for them."""
        self._prompt_scores: dict[str, dict[int, Score]] = {}
        self._shown: dict[str, list[str]] = {}
        """Request -> the contents of its pictures that the model was given."""

    # --- text ---

    def prepare_text(self, text: str) -> Prepared:
        """See `Language`."""
        if self._loaded.tokenizer is None:
            raise PromptError("the model's folder has no tokenizer: send token ids")
        return Prepared(tuple(self._loaded.tokenizer(text)["input_ids"]))

    def prepare_chat(self, chat: Chat) -> Prepared:
        """See `Language`."""
        images = [part.image for turn in chat.messages for part in turn.parts if part.image]
        try:
            return self._with_images(chat) if images else self._plain(chat)
        except PromptError:
            raise
        except Exception as error:  # noqa: BLE001 - templates refuse a chat with any error
            raise PromptError(f"the chat template refuses this: {error}") from None

    def _plain(self, chat: Chat) -> Prepared:
        turns = [
            {"role": turn.role, "content": "".join(part.text for part in turn.parts)}
            for turn in chat.messages
        ]
        return Prepared(tuple(self._loaded.chat(turns, **_variables(chat))))

    def _with_images(self, chat: Chat) -> Prepared:
        pictures, turns = [], []
        for turn in chat.messages:
            content: list[dict[str, Any]] = []
            for part in turn.parts:
                if part.image:
                    decoded = opened(part.image)
                    pictures.append(picture(self._loaded.processor, part.image, decoded))
                    content.append({"type": "image", "image": decoded})
                else:
                    content.append({"type": "text", "text": part.text})
            turns.append({"role": turn.role, "content": content})
        assert self._loaded.processor is not None
        made = self._loaded.processor.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=True, return_dict=True, **_variables(chat)
        )
        tokens = tuple(made["input_ids"][0])
        assert self._image_token is not None
        return Prepared(tokens, spans_of(tokens, self._image_token, pictures), tuple(pictures))

    def detokenizer(self) -> Detokenizer:
        """See `Language`."""
        return GrowingText(self._loaded.tokenizer) if self._loaded.tokenizer else _NoText()

    def token_bytes(self, token: int) -> bytes:
        """See `Language`."""
        return self._bytes.of(token) if self._bytes else b""

    # --- requests, in the engine's thread ---

    def begin(self, request_id: str, prepared: Prepared, sampling: SamplingOptions) -> None:
        """See `Language`."""
        self._check_placeholders(prepared)
        self._sampling[request_id] = sampling
        self._prompt_lengths[request_id] = len(prepared.tokens)
        if sampling.top_logprobs is not None:
            self._scores[request_id] = []
        if sampling.prompt_logprobs is not None:
            self._prompts[request_id] = prepared.tokens
            self._prompt_scores[request_id] = {}
            self.model.on_logits = self._score_prompt
        if isinstance(prepared.media, tuple):
            shown = self._shown[request_id] = []
            for each in prepared.media:
                self.model.images.add(each.content, each.values, each.grid)
                shown.append(each.content)  # now `end` has to take it back

    def _check_placeholders(self, prepared: Prepared) -> None:
        """Refuse placeholders without media, in texts and in token ids."""
        shown = {
            place
            for span in prepared.spans
            for place in range(span.start, span.start + span.length)
        }
        for place, token in enumerate(prepared.tokens):
            if token in self._placeholders and place not in shown:
                raise PromptError(f"token {place} is a placeholder {token} for media, without any")

    def _choose(self, work: Work, logits: torch.Tensor) -> int:
        sampling = self._sampling.get(work.request_id)
        if sampling is None:  # it was cancelled while its step was in flight
            return int(logits.argmax())
        chosen = choose(sampling, work.tokens, self._prompt_lengths[work.request_id], logits)
        if chosen.score is not None:
            self._scores[work.request_id].append(chosen.score)
        return chosen.token

    def _score_prompt(self, request_id: str, first: int, logits: torch.Tensor) -> None:
        """Score the prompt tokens that logits [tokens, vocabulary] from `first` on foretell."""
        next_tokens = self._prompts.get(request_id, ())[first + 1 :][: len(logits)]
        if next_tokens:
            top = self._sampling[request_id].prompt_logprobs or 0
            found = score_rows(logits[: len(next_tokens)], next_tokens, top)
            self._prompt_scores[request_id] |= dict(enumerate(found, first + 1))

    def scores(self, request_id: str, tokens: Sequence[int]) -> Sequence[Score]:
        """See `Language`."""
        scores, self._scores[request_id] = self._scores[request_id], []
        return scores[: len(tokens)]

    def prompt_scores(self, request_id: str) -> Sequence[Score]:
        """See `Language`."""
        found = self._prompt_scores[request_id]
        return [found[position] for position in sorted(found)]

    def end(self, request_id: str) -> None:
        """See `Language`."""
        for kept in (
            self._sampling, self._prompt_lengths, self._scores, self._prompts, self._prompt_scores,
        ):  # fmt: skip
            kept.pop(request_id, None)
        if not self._prompts:
            self.model.on_logits = None
        for content in self._shown.pop(request_id, ()):
            self.model.images.drop(content)


class _NoText:
    """A model without a tokenizer: its answers are token ids."""

    def add(self, token: int) -> str:
        """See `Detokenizer`."""
        del token
        return ""

    def end(self) -> str:
        """See `Detokenizer`."""
        return ""


def _variables(chat: Chat) -> dict[str, Any]:
    """Return the template's variables besides messages; no tools are None, as in transformers."""
    return {**chat.variables, "tools": list(chat.tools) or None}


def _length(wanted: int, stated: int | None) -> int:
    if wanted and (wanted < 2 or wanted > (stated or wanted)):
        raise ConfigError(
            f"max_model_len {wanted} must be from 2 to the {stated or 'any'} tokens of the model, "
            f"for example {stated or 4096}"
        )
    return wanted or stated or UNLIMITED


def _ends(loaded: Loaded) -> frozenset[int]:
    """Return the tokens that end an answer, from generation settings and tokenizer."""
    stated = [
        getattr(loaded.model.generation_config, "eos_token_id", None),
        getattr(loaded.tokenizer, "eos_token_id", None),
    ]
    lists = [each if isinstance(each, list) else [each] for each in stated]
    return frozenset(token for each in lists for token in each if token is not None)
