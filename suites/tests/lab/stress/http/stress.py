"""Many streaming clients with random cancels: answers, leaks and memory of a server.

python -m kvproof.suites.tests.lab.stress.http.stress --clients 200 --seconds 120

Prompts come from a small set with long common prefixes, so that hits, evictions and preemptions are
frequent. The expected answers come from an idle server without prefix caching, one by one. Exit
code 0 if all checks pass.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvproof.suites.tests.lab.stress.http.outcome import BASELINE, Outcome, Tally, report
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.lab.stress.http.streams import Streamed, stream

TIERS = {"--host-tier": 2, "--disk-tier": 3, "--weights": 2}
"""Options with their values, in words of the command line."""
_HEADS, _PROMPTS = 8, 64
_SETTLE = 30.0
"""Seconds until the last cancelled requests must be gone."""


class Expected(NamedTuple):
    """Answer of the idle server, with the margin of each token."""

    body: dict[str, Any]
    text: str
    tokens: tuple[int, ...]
    finish: str
    gaps: tuple[float, ...]
    """Per token, log-probability of the likeliest minus that of the next; empty: certain."""


def bodies(model: str, seed: int, *, longest: int) -> list[dict[str, Any]]:
    """Draw prompts with common prefixes and answers of different length."""
    draw = random.Random(seed)
    heads = [_words(draw, draw.randrange(20, 400)) for _ in range(_HEADS)]
    return [
        {
            "model": model,
            "prompt": draw.choice(heads) + _words(draw, draw.randrange(1, 80)),
            "max_tokens": draw.randrange(1, longest),
            "ignore_eos": draw.random() < 0.5,
            "cache_salt": draw.choice(("red", "blue")),
            "return_token_ids": True,
        }
        for _ in range(_PROMPTS)
    ]


def _words(draw: random.Random, length: int) -> str:
    return "".join(draw.choices("abcdefghij klmno pqrst uvw xyz. ", k=length))


def expected(server: Server, body: dict[str, Any]) -> Expected:
    """Get the answers of an idle server."""
    answer = server.complete(**body, logprobs=2)
    choice = answer["choices"][0]
    top = [sorted(each.values(), reverse=True) for each in choice["logprobs"]["top_logprobs"]]
    gaps = tuple(each[0] - each[1] if len(each) > 1 else float("inf") for each in top)
    tokens = tuple(choice["token_ids"])
    return Expected(body, choice["text"], tokens, choice["finish_reason"], gaps)


class Client:
    """Sends one request after the other, and cancels some."""

    def __init__(
        self,
        server: Server,
        asked: Sequence[Expected],
        tally: Tally,
        draw: random.Random,
        tolerance: float,
    ) -> None:
        self._server, self._asked, self._tally = server, asked, tally
        self._draw, self._tolerance = draw, tolerance

    async def run(self, until: float) -> None:
        """Run until the end time."""
        while time.monotonic() < until:
            want = self._draw.choice(self._asked)
            leave = self._draw.choice((None, None, None, 0, 1, 2, 5, 20))
            body = want.body | {"stream": True, "stream_options": {"include_usage": True}}
            try:
                reported = await stream(
                    self._server.host, self._server.port, body, leave_after=leave
                )
            except Exception as error:  # noqa: BLE001 - whatever a client can meet is a finding
                self._tally.unexpected[f"{type(error).__name__}: {error}"[:200]] += 1
                continue
            await self._count(want, reported)

    async def _count(self, want: Expected, reported: Streamed) -> None:
        tally = self._tally
        if reported.status == 0:
            tally.cancelled += 1
        elif reported.status == 429:
            tally.turned_away += 1
            await asyncio.sleep(self._draw.uniform(0.05, 0.5))
        elif reported.status != 200 or reported.error:
            tally.unexpected[f"{reported.status} {reported.error}"[:200]] += 1
        else:
            self._judge(want, reported)

    def _judge(self, want: Expected, reported: Streamed) -> None:
        tally = self._tally
        tally.completed += 1
        assert reported.usage is not None
        tally.prompt_tokens += reported.usage["prompt_tokens"]
        tally.cached_tokens += reported.usage["prompt_tokens_details"]["cached_tokens"]
        if (reported.text, reported.tokens, reported.finish) == want[1:4]:
            return
        pairs = enumerate(zip(reported.tokens, want.tokens, strict=False))
        first = next((place for place, (a, b) in pairs if a != b), None)
        if first is not None and want.gaps[first] < self._tolerance:
            tally.near_ties += 1
        else:
            tally.wrong.append(
                f"prompt {want.body['prompt'][:40]!r}: {reported} instead of {want[1:4]}"
            )


async def _load(server: Server, asked: Sequence[Expected], tally: Tally, options: Options) -> None:
    until = time.monotonic() + options.seconds
    clients = [
        Client(server, asked, tally, random.Random(f"{options.seed} {index}"), options.tolerance)
        for index in range(options.clients)
    ]
    await asyncio.gather(*(client.run(until) for client in clients))


def settled(server: Server) -> dict[str, float]:
    """Return the metrics once nothing is under way, or the last ones after a timeout."""
    until = time.monotonic() + _SETTLE
    while any((now := server.metrics())[name] for name in BASELINE) and time.monotonic() < until:
        time.sleep(0.1)
    return now


class Options(NamedTuple):
    """Options of a stress test."""

    clients: int = 200
    seconds: float = 120.0
    seed: int = 1
    model: str = "symbolic"
    longest: int = 64
    """Tokens of the longest answer."""
    tolerance: float = 0.0
    """Difference of log-probabilities within which two tokens count as equally likely."""
    serve: tuple[str, ...] = ()
    """Further options of `kvproof serve`."""


def without_tiers(serve: Sequence[str]) -> list[str]:
    """Return options without those that need prefix caching."""
    left, skipped = [], 0
    for each in serve:
        skipped = TIERS.get(each, skipped)
        if skipped:
            skipped -= 1
        else:
            left.append(each)
    return left


def stress(options: Options) -> Outcome:
    """Run the idle server, then the one under load."""
    model = ("--model", options.model, "--served-model-name", "model")
    wanted = bodies("model", options.seed, longest=options.longest)
    with serving(*model, *without_tiers(options.serve), "--no-enable-prefix-caching") as idle:
        asked = [expected(idle, body) for body in wanted]
    tally = Tally()
    with serving(*model, *options.serve) as server:
        warm = options._replace(seconds=min(10.0, options.seconds / 4), seed=options.seed + 1)
        asyncio.run(_load(server, asked, Tally(), warm))
        before = settled(server)
        started = time.monotonic()
        asyncio.run(_load(server, asked, tally, options))
        seconds = time.monotonic() - started
        after = settled(server)
        code = server.end()
        return Outcome(tally, seconds, before, after, code, server.errors())


def main() -> int:
    """Parse the command line, run, print the report."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=about, allow_abbrev=False)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="symbolic", help="symbolic, or a Hugging Face folder")
    parser.add_argument("--longest", type=int, default=64, help="tokens of the longest answer")
    parser.add_argument("--tolerance", type=float, default=0.0, help="of log-probabilities")
    given, serve = parser.parse_known_args()
    outcome = stress(Options(**vars(given), serve=tuple(serve)))
    sys.stdout.write(report(outcome) + "\n")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
