"""Which guards of `--mode invariant` keep bits, and how far apart logits are without each.

python -m kvproof.suites.tests.lab.invariance [--family qwen3]

One tiny model answers a prompt in four other ways: in other chunks, after a hit, with generated
tokens in the hit, together with other requests. Each guard is then taken away, and the largest
difference of a logit at one position is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from kvproof.suites.tests.lab import needs_torch  # noqa: F401 - comes before torch

import torch  # isort: skip

from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model_runner.batch import Row
from kvproof.reference.model_runner.runner import HuggingFaceModel, Mode, cache_config
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.job import subject

BLOCK, PROMPT, SHARED, NEW = 8, 36, 21, 6
"""Tokens."""


class Served(NamedTuple):
    """An answer, and the logits that were computed for it, by position."""

    tokens: tuple[int, ...]
    logits: dict[int, torch.Tensor]


class Bench:
    """An engine on a tiny model that keeps logits."""

    def __init__(self, model: Any, mode: Mode, *, chunk: int) -> None:
        config = cache_config(model, num_blocks=200, block_size=BLOCK, kernel_block_size=4)
        self.kept: dict[str, dict[int, torch.Tensor]] = {}
        runner = HuggingFaceModel(model, config, mode=mode, on_logits=self._keep)
        self._engine = Engine(EngineConfig(config, chunk), runner)

    def _keep(self, name: str, start: int, values: torch.Tensor) -> None:
        places = self.kept.setdefault(name, {})
        places.update({start + at: value.clone() for at, value in enumerate(values)})

    def serve(self, **prompts: Sequence[int]) -> Served:
        """Answer all at once; returns the first one's answer."""
        for name, tokens in prompts.items():
            assert self._engine.add_request(name, tokens, max_new_tokens=NEW) is None
        found: dict[str, tuple[int, ...]] = {}
        while self._engine.busy:
            found |= {output.request_id: output.tokens for output in self._engine.step()}
        first = next(iter(prompts))
        return Served(found[first], self.kept[first])


Way = Callable[[Any, Mode], tuple[Served, Served]]
"""Serves a prompt twice, the second time in another way."""


def _prompt() -> list[int]:
    return Writer(1).text(PROMPT)


def chunks(model: Any, mode: Mode) -> tuple[Served, Served]:
    """The same prompt in chunks of 32 and of 7 tokens."""
    one, two = (Bench(model, mode, chunk=size).serve(a=_prompt()) for size in (32, 7))
    return one, two


def hit(model: Any, mode: Mode) -> tuple[Served, Served]:
    """Computed, and after a hit that ends inside it."""
    plain, bench = Bench(model, mode, chunk=32).serve(a=_prompt()), Bench(model, mode, chunk=32)
    bench.serve(before=_prompt()[:SHARED])
    return plain, bench.serve(a=_prompt())


def generated(model: Any, mode: Mode) -> tuple[Served, Served]:
    """A later turn after a hit on generated tokens, and computed."""
    bench = Bench(model, mode, chunk=32)
    said = bench.serve(before=_prompt()).tokens
    later = [*_prompt(), *said, *Writer(2).text(5)]
    return Bench(model, mode, chunk=32).serve(a=later), bench.serve(a=later)


def company(model: Any, mode: Mode) -> tuple[Served, Served]:
    """Alone, and together with two other requests."""
    alone = Bench(model, mode, chunk=96).serve(a=_prompt())
    others = {name: Writer(seed).text(PROMPT) for name, seed in (("b", 3), ("c", 4))}
    return alone, Bench(model, mode, chunk=96).serve(a=_prompt(), **others)


WAYS: dict[str, Way] = {"chunks": chunks, "hit": hit, "generated": generated, "company": company}


def difference(one: Served, two: Served) -> float:
    """Largest difference of a logit at a position that both computed, up to the first other token.

    Positions behind an answer's first changed token have other prompts.
    """
    same = next((n for n, (a, b) in enumerate(zip(one.tokens, two.tokens, strict=True)) if a != b),
                len(one.tokens))  # fmt: skip
    last = max(one.logits) - len(one.tokens) + 1 + same
    both = [at for at in one.logits.keys() & two.logits.keys() if at <= last]
    assert both, "no position was computed twice"
    return max(float((one.logits[at] - two.logits[at]).abs().max()) for at in both)


@contextmanager
def several_requests() -> Iterator[None]:
    """Without the guard of one request per forward: equal lengths run together."""

    def batches(_: HuggingFaceModel, rows: Sequence[Row]) -> list[list[Row]]:
        alike: dict[object, list[Row]] = {}
        for row in rows:
            alike.setdefault((row.tokens, row.done), []).append(row)
        return list(alike.values())

    with mock.patch.object(HuggingFaceModel, "_batches", batches):
        yield


@contextmanager
def several_tokens() -> Iterator[None]:
    """Without the guard of one token per forward: a step is one forward."""
    begin = HuggingFaceModel._begin

    def whole(self: HuggingFaceModel, work: Any) -> Row:
        with mock.patch.object(self, "mode", "exact"):
            return begin(self, work)

    with mock.patch.object(HuggingFaceModel, "_begin", whole):
        yield


GUARDS = {"one request a forward": several_requests, "one token a forward": several_tokens}


def table(family: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Differences by way: of the mode as it is, and without each guard."""
    model = subject(family).model
    yield "all guards", {name: difference(*way(model, "invariant")) for name, way in WAYS.items()}
    for name, without in GUARDS.items():
        with without():
            found = {each: difference(*way(model, "invariant")) for each, way in WAYS.items()}
        yield f"without {name}", found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="qwen3")
    torch.set_num_threads(1)
    sys.stdout.write(f"| | {' | '.join(WAYS)} |\n| --- |{' --: |' * len(WAYS)}\n")
    for name, found in table(parser.parse_args().family):
        sys.stdout.write(f"| {name} | {' | '.join(f'{each:.2g}' for each in found.values())} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
