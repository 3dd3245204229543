"""Parts of the self-check: a small engine on a model, and what a comparison with it has found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model_runner.oracle import Picture, truth
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config

TOLERANCE = 1e-3
"""Share of the largest logit, in float32; with fewer bits rounding may choose other experts."""
BLOCK = 16
STATES = 8
"""Room for states in the pool: a large model has large blocks."""


class Finding(NamedTuple):
    """Result of one comparison."""

    name: str
    difference: float
    limit: float
    upstream: bool = False
    """Whether transformers was compared with itself."""
    ahead: bool = False
    """Whether it shows that tokens attend to later ones."""

    @property
    def passed(self) -> bool:
        """Return whether it holds."""
        return self.difference <= self.limit

    @property
    def text(self) -> str:
        """Return the comparison and its result, for people."""
        return f"{self.name.rstrip(',')} {self.difference:.0e}" if self.limit else self.name


class Answer(NamedTuple):
    """A prompt and its answer."""

    tokens: list[int]
    """The last token of the answer left out."""
    hit: int
    """Tokens that were found."""
    segments: tuple[tuple[int, int], ...]
    """(start, stop) of each forward."""
    logits: torch.Tensor
    """[tokens after the hit, vocabulary]"""


class Served:
    """The model in exact mode, in a pool for two prompts."""

    def __init__(self, model: Any, *, chunk: int, tokens: int) -> None:
        self._model = model
        config = cache_config(model, num_blocks=2, block_size=BLOCK)
        blocks = (tokens // BLOCK + 4) * len(config.groups) + STATES * config.layout.state_blocks
        config = replace(config, num_blocks=blocks)
        self._segments: list[tuple[int, torch.Tensor]] = []
        self._runner = HuggingFaceModel(model, config, on_logits=self._keep)
        self._engine = Engine(EngineConfig(config, chunk, poison_freed=True), self._runner)
        self._asked = 0

    def _keep(self, _: str, start: int, logits: torch.Tensor) -> None:
        self._segments.append((start, logits))

    def ask(
        self, tokens: Sequence[int], *, answer: int, pictures: Sequence[Picture] = ()
    ) -> Answer:
        """Answer one prompt alone."""
        self._segments.clear()
        self._asked += 1
        for each in pictures:
            self._runner.images.add(each.span.content, each.pixels, each.grid)
        refused = self._engine.add_request(
            str(self._asked),
            tuple(tokens),
            max_new_tokens=answer,
            spans=[each.span for each in pictures],
        )
        if refused is not None:
            raise RuntimeError(f"the self-check's own prompt was refused: {refused}")
        new: Sequence[int] = ()
        while self._engine.busy:
            for output in self._engine.step():
                new = output.tokens
            if self._engine.stuck:
                raise RuntimeError("the pool of the self-check is too small for this model")
        cuts = tuple((start, start + len(logits)) for start, logits in self._segments)
        logits = torch.cat([logits for _, logits in self._segments])
        return Answer([*tokens, *new[:-1]], cuts[0][0], cuts, logits)

    def equal(
        self, asked: Answer, after: Answer | None = None
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[()]:
        """Return the logits of a `DynamicCache` on the same chunks, and ours, to be equal.

        `after`: the request whose content was found. Empty if the hit ends inside a chunk.
        """
        before = [cut for cut in after.segments if cut[1] <= asked.hit] if after else []
        if (before[-1][1] if before else 0) != asked.hit:
            return ()
        right = truth(self._model, asked.tokens, [*before, *asked.segments]).logits
        return right[asked.hit :], asked.logits


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference; infinite for NaN."""
    largest = (left.double() - right.double()).abs().max()
    return float(torch.nan_to_num(largest, nan=float("inf")))


def prompt_of(model: Any, length: int) -> list[int]:
    """Return a prompt of different tokens, usually none of them special."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return [int(size * (3 + n) / (2 * length)) for n in range(length)]
