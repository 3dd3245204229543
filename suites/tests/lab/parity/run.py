"""Requests through the engine, with all data for the comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.interface import Content, Place, Work
from kvproof.reference.model_runner.experts import expert_blocks
from kvproof.reference.model_runner.oracle import Picture, Schedule
from kvproof.reference.model_runner.runner import HuggingFaceModel, Mode, cache_config

BLOCK, KERNEL_BLOCK, LOCAL_BLOCK = 16, 4, 8
"""Tokens: of blocks, of kernel blocks, of the blocks of windows and chunks."""
CHUNK = 32
"""Tokens per step: a whole number of blocks, so that hits end where some forward ended."""
BLOCKS = 400


class Prompt(NamedTuple):
    """A prompt."""

    tokens: tuple[int, ...]
    pictures: tuple[Picture, ...] = ()


class Served(NamedTuple):
    """A request that was answered."""

    asked: Prompt
    answer: tuple[int, ...]
    hit: int
    schedule: Schedule
    """Forwards of its last admission; the first begins at `hit`."""
    logits: torch.Tensor
    """[tokens computed, vocabulary], from `hit` on."""
    experts: Recorded | None
    content: Content
    """Entries and state after the last step."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return every computed token: all but the last of the answer."""
        return (*self.asked.tokens, *self.answer[:-1])


class Watched(HuggingFaceModel):
    """Keeps the content of each request after each of its steps."""

    def __init__(self, model: Any, config: CacheConfig, *, mode: Mode) -> None:
        super().__init__(model, config, mode=mode, on_logits=self._keep)
        self.segments: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self.contents: dict[str, Content] = {}
        self.before: Callable[[Sequence[Work]], None] = lambda _: None
        """Called before each step."""

    def _keep(self, request_id: str, start: int, logits: torch.Tensor) -> None:
        self.segments.setdefault(request_id, []).append((start, logits))

    def launch(self, step: int, works: Sequence[Work]) -> None:
        """Run a step; see `Model`."""
        self.before(works)
        super().launch(step, works)
        for work in works:
            ids = dict(work.state.writes)[work.stop] if work.state else ()
            place = Place(work.tables, ids, 0, work.stop)  # type: ignore[arg-type]  # () is no ids
            self.contents[work.request_id] = self.take(place)


class Run:
    """One engine that serves one batch of prompts after the other."""

    def __init__(
        self,
        model: Any,
        *,
        mode: Mode = "exact",
        below: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`options`: of CacheConfig; `below`: the tiers, of EngineConfig."""
        routed = bool(expert_blocks(model))
        settings = {"num_blocks": BLOCKS, "return_routed_experts": routed, **options}
        config = cache_config(
            model,
            block_size=BLOCK,
            kernel_block_size=KERNEL_BLOCK,
            local_block_size=LOCAL_BLOCK,
            **settings,
        )
        self.model = Watched(model, config, mode=mode)
        tiers = below or {}
        self.engine = Engine(EngineConfig(config, CHUNK, poison_freed=True, **tiers), self.model)
        self._count = 0

    def serve(self, prompts: Sequence[Prompt], *, answer: int) -> list[Served]:
        """Answer prompts in one batch with so many tokens each."""
        asked: dict[str, Prompt] = {}
        for prompt in prompts:
            self._count += 1
            asked[str(self._count)] = prompt
            self._ask(str(self._count), prompt, answer)
        done: dict[str, Output] = {}
        while self.engine.busy:
            done |= {output.request_id: output for output in self.engine.step() if output.done}
            assert not self.engine.stuck, f"requests {sorted(asked)} wait and nothing can run"
        return [self._served(name, prompt, done[name]) for name, prompt in asked.items()]

    def _ask(self, name: str, prompt: Prompt, answer: int) -> None:
        for picture in prompt.pictures:
            self.model.images.add(picture.span.content, picture.pixels, picture.grid)
        spans = [picture.span for picture in prompt.pictures]
        refusal = self.engine.add_request(name, prompt.tokens, max_new_tokens=answer, spans=spans)
        assert refusal is None, f"request {name} never fits: {refusal}"

    def _served(self, name: str, asked: Prompt, output: Output) -> Served:
        admissions = [
            decision.detail[0]
            for decision in self.engine.decisions()
            if decision.verb == "admit" and decision.request_id == name
        ]
        segments = _last_admission(self.model.segments[name])
        schedule = [(start, start + len(logits)) for start, logits in segments]
        return Served(
            asked,
            output.tokens,
            int(admissions[-1]),
            schedule,
            torch.cat([logits for _, logits in segments]),
            output.experts,
            self.model.contents[name],
        )

    @property
    def preemptions(self) -> int:
        """Number of preemptions."""
        return sum(decision.verb == "preempt" for decision in self.engine.decisions())


def _last_admission(
    segments: Sequence[tuple[int, torch.Tensor]],
) -> Sequence[tuple[int, torch.Tensor]]:
    """Drop the results from before a preemption."""
    for index in range(len(segments) - 1, 0, -1):
        start, logits = segments[index - 1]
        if segments[index][0] != start + len(logits):
            return segments[index:]
    return segments
