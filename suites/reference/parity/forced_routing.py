"""Runs each request twice on a tiny model: with forced expert routing, and free.

In float64: other step borders round differently, and in float32 a rounding may choose another
expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch

from kvproof.reference.core.identity import Namespace
from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.parity.tiny_models import MOE_FAMILIES, Writer, make

_Request: TypeAlias = tuple[tuple[int, ...], str, torch.Tensor | None]
"""Prompt, salt, and forced rows."""

LAYERS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_hidden_layers": 2},
    "deepseek_v3": {"num_hidden_layers": 3},
    "gpt_oss": {
        "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}  # fmt: skip
BLOCK, KERNEL_BLOCK = 4, 2
NEW = 2
CLOSE = 1e-5
"""Logits are about 30; some routers always compute in float32."""


class Seen(NamedTuple):
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    rows: torch.Tensor
    """[tokens, layers, ranks]: experts of all tokens but the last."""
    logits: torch.Tensor
    """[tokens computed, vocabulary]"""
    first: int
    """Position of the first of them."""
    ends: tuple[int, ...]
    salt: str


class ForcedRoutingMachine:
    """Verbs are the methods that do not begin with an underscore."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.coverage, self.recorded, self.operations = coverage, list[Seen](), list[str]()
        model = _model(config["family"])
        cached = cache_config(
            model,
            num_blocks=100,
            block_size=BLOCK,
            kernel_block_size=KERNEL_BLOCK,
            return_routed_experts=True,
        )
        self._logits: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self._runner = HuggingFaceModel(model, cached, mode=config["mode"], on_logits=self._keep)
        self._engine = Engine(
            EngineConfig(cached, config["chunk"], poison_freed=True), self._runner
        )
        self._experts = cached.experts[0]
        self._close = 0.0 if config["mode"] == "invariant" else CLOSE
        self._count = 0

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation (see `Machine`)."""
        if "told" in arguments:  # op logs up to 0.13
            arguments["forced"] = arguments.pop("told")
        of = arguments.get("of")
        if verb == "rest" or (of is not None and of >= len(self.recorded)):
            return None
        self.operations.append(verb)
        return getattr(self, verb)(**arguments)

    # --- verbs ---

    def record(self, seed: int, length: int) -> object:
        seen = self._serve({"": (Writer(seed).text(length), self._salt(), None)})[""]
        self.recorded.append(seen)
        return seen.answer

    def replay(self, of: int, forced: int, *, hit: bool) -> object:
        """Serve an equal request with the first `forced` recorded rows forced."""
        source = self.recorded[of]
        forced = min(forced, len(source.rows))
        salt = source.salt if hit else self._salt()
        seen = self._serve({"": (source.prompt, salt, source.rows[:forced])})[""]
        self._agree("a_replay_gives_the_recorded_logits", source, seen, stop=forced)
        self._agree("a_replay_ends_with_its_rows", source, seen, start=forced)
        self._note(source, seen, forced)
        return [seen.first, forced]

    def force(self, of: int, forced: int, shift: int) -> object:
        """Serve an equal request with other experts forced."""
        source = self.recorded[of]
        wanted = (source.rows[:forced] + shift) % self._experts
        seen = self._serve({"": (source.prompt, self._salt(), wanted)})[""]
        self._follows(wanted, seen)
        self.coverage.event("other experts than the model's are forced")
        return shift

    def beside(self, of: int, forced: int) -> object:
        """Serve an equal request in one batch with one whose experts are forced."""
        source = self.recorded[of]
        wanted = (source.rows[:forced] + 1) % self._experts
        seen = self._serve(
            {
                "forced": (source.prompt, self._salt(), wanted),
                "free": (source.prompt, self._salt(), None),
            }
        )
        self._follows(wanted, seen["forced"])
        self._agree("a_replay_is_of_one_request_only", source, seen["free"])
        self.coverage.event("a forced request in one batch with another")
        return len(wanted)

    # --- checks ---

    def _follows(self, wanted: torch.Tensor, seen: Seen) -> None:
        self._same_rows("forced_experts_are_used", wanted, seen.rows[: len(wanted)])

    def _agree(
        self, prop: str, source: Seen, seen: Seen, *, start: int = 0, stop: int | None = None
    ) -> None:
        """Compare experts and logits of tokens [start, stop), and the answer with the last."""
        self._same_rows(prop, source.rows[start:stop], seen.rows[start:stop], start)
        first = max(start, seen.first)
        left, right = (each.logits[first - each.first : stop and stop - each.first]
                       for each in (source, seen))  # fmt: skip
        far = float((left - right).abs().max()) if len(left) else 0.0
        self.coverage.check(
            prop, far <= self._close, lambda: f"logits from token {first} on differ by {far:.1e}"
        )
        self.coverage.check(
            prop,
            stop not in (None, len(source.rows)) or seen.answer == source.answer,
            lambda: f"the answer is {seen.answer}, recorded was {source.answer}",
        )

    def _same_rows(
        self, prop: str, wanted: torch.Tensor, rows: torch.Tensor, first: int = 0
    ) -> None:
        wrong = (wanted.sort(-1)[0] != rows.sort(-1)[0]).any(-1).nonzero().tolist()
        self.coverage.check(
            prop,
            not wrong,
            lambda: f"layer {wrong[0][1]} chose other experts for token {first + wrong[0][0]}",
        )

    def _note(self, source: Seen, seen: Seen, forced: int) -> None:
        inside = forced not in source.ends and seen.first < forced
        self.coverage.event("the forced rows end inside a step", inside)
        self.coverage.event("the forced rows end with a step", forced in source.ends)
        self.coverage.event("a replay in several steps", seen.ends[0] < forced)
        self.coverage.event("a replay of generated tokens", forced > len(source.prompt))
        self.coverage.event("a replay after a hit", 0 < seen.first < forced)

    # --- requests ---

    def _salt(self) -> str:
        """Return a namespace without cached blocks: other experts make other entries (H1)."""
        self._count += 1
        return str(self._count)

    def _keep(self, name: str, start: int, logits: torch.Tensor) -> None:
        self._logits.setdefault(name, []).append((start, logits))

    def _serve(self, requests: Mapping[str, _Request]) -> dict[str, Seen]:
        self._logits.clear()
        for name, (prompt, salt, forced) in requests.items():
            if forced is not None:
                self._runner.replays[name] = forced
            space = Namespace(salt=salt)
            self._engine.add_request(name, prompt, max_new_tokens=NEW, namespace=space)
        done: dict[str, Output] = {}
        while self._engine.busy:
            done |= {output.request_id: output for output in self._engine.step() if output.done}
        self._runner.replays.clear()
        return {name: self._seen(done[name], *requests[name][:2]) for name in requests}

    def _seen(self, output: Output, prompt: tuple[int, ...], salt: str) -> Seen:
        assert output.experts is not None
        segments = self._logits[output.request_id]
        return Seen(
            prompt,
            output.tokens,
            torch.from_numpy(output.experts.rows.astype("int64")),
            torch.cat([logits for _, logits in segments]),
            segments[0][0],
            tuple(start + len(logits) for start, logits in segments),
            salt,
        )


@cache
def _model(family: str) -> Any:
    torch.set_num_threads(1)
    return make(MOE_FAMILIES[family], torch.float64, **LAYERS[family])
