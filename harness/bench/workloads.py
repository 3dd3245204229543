"""Workloads: named, seeded sequences of prompts with exactly known sharing.

A prompt is a path of *segments*. A segment has a number of tokens and an id for its content and
everything before it; equal ids in two prompts mean equal prefixes up to there. The paths are small
and kept whole; tokens are made on demand from (seed, id, offset), so that a trace of 145 million
tokens is never in memory at once.

Needs the standard library of Python 3.10 and numpy: workloads are built inside the workers.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.harness.bench.mooncake_trace import read_trace
from kvproof.harness.errors import UsageError

MOST = 10_000_000
"""Requests of a workload, tokens of a prompt, and every other size of a specification."""
MOST_SEED = (1 << 31) - 1
VOCABULARY = 150_000
"""Token ids are below this, the size of today's vocabularies."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


class WorkloadError(UsageError):
    """A workload specification that names nothing known."""


class Paths(NamedTuple):
    """Prompts as paths of segments; request i owns entries [bounds[i], bounds[i + 1])."""

    bounds: NDArray[np.int64]
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    """Tokens of each entry, at least 1."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A sequence of requests; prompts are built on demand."""

    name: str
    spec: str
    """Gives the same workload to `load_workload` in any process of this machine."""
    paths: Paths
    seed: int
    block: int | None = None
    """Tokens per hash block of a trace."""
    notes: tuple[str, ...] = ()
    """Remarks for a reader of the figures, such as skipped lines."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.paths.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each prompt."""
        ends = np.concatenate(([0], np.cumsum(self.paths.counts)))[self.paths.bounds]
        return np.diff(ends)

    @property
    def tokens(self) -> int:
        """Tokens of all prompts."""
        return int(self.paths.counts.sum())

    def head(self, requests: int) -> Workload:
        """Only the first `requests` requests."""
        bounds = self.paths.bounds[: requests + 1]
        stop = bounds[-1]
        return replace(self, paths=Paths(bounds, self.paths.ids[:stop], self.paths.counts[:stop]))

    def prompt(self, index: int) -> NDArray[np.int32]:
        """Token ids of one request, shape (length,)."""
        start, stop = self.paths.bounds[index : index + 2]
        return _tokens(self.seed, self.paths.ids[start:stop], self.paths.counts[start:stop])

    def batches(self, max_tokens: int) -> Iterator[tuple[int, list[NDArray[np.int32]]]]:
        """(index of the first request, prompts) of runs of about `max_tokens` tokens."""
        start, size = 0, 0
        batch: list[NDArray[np.int32]] = []
        for index in range(self.requests):
            prompt = self.prompt(index)
            if batch and size + len(prompt) > max_tokens:
                yield start, batch
                start, size, batch = index, 0, []
            batch.append(prompt)
            size += len(prompt)
        if batch:
            yield start, batch


def _tokens(seed: int, ids: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """A counter per segment, started at a mix of (seed, id), through an integer mix."""
    starts = np.cumsum(counts) - counts
    base = _mix(_mix(np.full(1, seed, np.uint64)) + ids.astype(np.uint64) * _STEP)
    state = np.repeat(base - starts.astype(np.uint64) * _STEP, counts)
    state += np.arange(len(state), dtype=np.uint64) * _STEP
    return (((_mix(state) >> _HALF) * np.uint64(VOCABULARY)) >> _HALF).astype(np.int32)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 without its last shift, which leaves the high half as it is."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values ^= values >> np.uint64(27)
    values *= _MIX_2
    return values


def _pack(prompts: list[list[tuple[int, int]]]) -> Paths:
    sizes = [len(prompt) for prompt in prompts]
    entries = np.array([entry for prompt in prompts for entry in prompt], np.int64)
    bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    return Paths(bounds, entries[:, 0].copy(), entries[:, 1].copy())


def _mean(rng: np.random.Generator, tokens: int) -> int:
    return int(rng.geometric(1 / tokens))


def shared_prefix(
    _: np.random.Generator, *,
    requests: int = 2000, length: int = 4096, shared: float = 0.75, families: int = 16,
) -> Paths:  # fmt: skip  # one parameter list like the specification
    """System prompts: request i is prefix i mod `families` and a suffix of its own.

    A prefix has floor(length * shared) tokens. With an infinite cache a share
    prefix / length * (1 - families / requests) of the tokens hits: 0.744 with the defaults.
    """
    prefix = int(length * shared)
    return _pack(
        [
            [part for part in ((i % families, prefix), (families + i, length - prefix)) if part[1]]
            for i in range(requests)
        ]
    )


def uniform(
    rng: np.random.Generator, *, requests: int = 2000, length: int = 4096, spread: float = 0.5
) -> Paths:
    """Noise without hits; lengths are uniform in length * (1 - spread) .. length * (1 + spread)."""
    half = int(length * spread)
    low, high = max(1, length - half), length + half
    lengths = rng.integers(low, high + 1, requests)
    return _pack([[(i, int(n))] for i, n in enumerate(lengths)])


def multi_turn(
    rng: np.random.Generator, *,
    requests: int = 2000, turns: int = 8, systems: int = 4, system: int = 1024,
    user: int = 128, reply: int = 384, concurrent: int = 64,
) -> Paths:  # fmt: skip  # one parameter list like the specification
    """Chats: each turn sends the conversation so far again, and a new message.

    A conversation has `turns` turns and one of `systems` system prompts of `system` tokens.
    Messages and replies have geometric lengths with means `user` and `reply`; `concurrent`
    conversations are open at a time and the next turn is of a random one of them. A prompt of
    turn t (from 0) has on average system + (t + 1) * user + t * reply tokens, of which an
    infinite cache holds the previous prompt, and for the first turn the system prompt:
    0.84 of the tokens with the defaults. The reply enters the cache with the next prompt.
    """
    fresh = systems
    open_chats: list[list[tuple[int, int]]] = []
    prompts: list[list[tuple[int, int]]] = []
    while len(prompts) < requests:
        while len(open_chats) < concurrent:
            open_chats.append([(int(rng.integers(systems)), system)])
        chosen = int(rng.integers(concurrent))
        chat = open_chats[chosen]
        chat.append((fresh, _mean(rng, user)))
        prompts.append(list(chat))
        chat.append((fresh + 1, _mean(rng, reply)))
        fresh += 2
        if len(chat) > 2 * turns:
            del open_chats[chosen]
    return _pack(prompts)


def agents(
    rng: np.random.Generator, *,
    requests: int = 2000, steps: int = 24, tools: int = 2048, task: int = 512, step: int = 256,
    branch: float = 0.25, concurrent: int = 16,
) -> Paths:  # fmt: skip  # one parameter list like the specification
    """Agents that explore: paths in one tree per task, below a tool prompt that all share.

    A task starts with `tools` tokens common to all tasks and a statement of its own, and makes
    `steps` requests. Each request adds one step to the newest path of the task, or, with
    probability `branch`, to a random earlier node of its tree. Statement and steps have
    geometric lengths with means `task` and `step`; `concurrent` tasks run at a time. A request
    misses exactly its own step (the first of a task also the statement), so with an infinite
    cache about 1 - (step + task / steps) / (mean prompt) of the tokens hit: 0.93 with the
    defaults, whose prompts have 4,200 tokens on average.
    """
    fresh = 1
    running: list[list[list[tuple[int, int]]]] = []
    prompts: list[list[tuple[int, int]]] = []
    while len(prompts) < requests:
        while len(running) < concurrent:
            running.append([[(0, tools), (fresh, _mean(rng, task))]])
            fresh += 1
        chosen = int(rng.integers(concurrent))
        tree = running[chosen]
        parent = tree[int(rng.integers(len(tree)))] if rng.random() < branch else tree[-1]
        tree.append([*parent, (fresh, _mean(rng, step))])
        prompts.append(tree[-1])
        fresh += 1
        if len(tree) > steps:
            del running[chosen]
    return _pack(prompts)


GENERATORS: dict[str, Callable[..., Paths]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "agents": agents,
    "uniform": uniform,
}
"""Name in a specification -> generator; its parameters, except `rng`, are those of the name."""

_TRACE = re.compile(r"(?P<path>.*\.jsonl(?:\.gz)?)(?::(?P<parameters>[^/\\]*))?")


def load_workload(spec: str) -> Workload:
    """Resolve `name:key=value,...` or `path/to/trace.jsonl[.gz]:key=value,...`.

    Raises WorkloadError for an unknown name, parameter or value, UsageError for a trace that
    cannot be read.
    """
    if match := _TRACE.fullmatch(spec):
        return _trace(match["path"], match["parameters"] or "")
    name, _, given = spec.partition(":")
    if name not in GENERATORS:
        raise WorkloadError(
            f"unknown workload {name[:80]!r}{_closest(name, GENERATORS)}",
            f"choose one of {', '.join(GENERATORS)}, or give a trace ending in .jsonl or .jsonl.gz",
        )
    generator = GENERATORS[name]
    defaults = inspect.getfullargspec(generator).kwonlydefaults or {}
    values = {"seed": 1, **_parameters(name, given, {**defaults, "seed": 1})}
    seed = int(values.pop("seed"))
    paths = generator(np.random.Generator(np.random.PCG64(seed)), **values)
    return Workload(name=spec, spec=spec, paths=paths, seed=seed)


def _trace(path: str, given: str) -> Workload:
    defaults: dict[str, int | float] = {"block": 0, "requests": 0, "seed": 0, "skip-bad-lines": 0}
    values = defaults | _parameters("a trace", given, defaults)
    trace = read_trace(
        Path(path), block=int(values["block"]), skip_bad_lines=bool(values["skip-bad-lines"])
    )
    bounds = np.asarray(trace.bounds)
    ids = np.asarray(trace.ids)
    counts = np.full(len(ids), trace.block, np.int64)
    counts[bounds[1:] - 1] = np.asarray(trace.lengths) - (np.diff(bounds) - 1) * trace.block
    workload = Workload(
        name=Path(path).name + (f":{given}" if given else ""),
        spec=f"{Path(path).resolve()}:{given}",
        paths=Paths(bounds, ids, counts),
        seed=int(values["seed"]),
        block=trace.block,
        notes=trace.notes,
    )
    return workload.head(int(values["requests"])) if values["requests"] else workload


def _parameters(name: str, given: str, defaults: dict[str, int | float]) -> dict[str, int | float]:
    values = {}
    for item in filter(None, given.split(",")):
        key, _, text = item.partition("=")
        if key not in defaults:
            raise WorkloadError(
                f"{name} has no parameter {key!r}{_closest(key, defaults)}",
                f"its parameters are {', '.join(defaults)}",
            )
        if key in values:
            raise WorkloadError(f"{name} has {key!r} twice", "give each parameter once")
        values[key] = _number(key, text, defaults[key])
    return values


def _number(key: str, text: str, default: int | float) -> int | float:
    low = 1 if default and key != "seed" else 0
    try:
        value = type(default)(text)
    except ValueError:
        value = -1
    if isinstance(value, float) and 0 <= value <= 1:
        return value
    most = MOST_SEED if key == "seed" else MOST
    if isinstance(value, int) and low <= value <= most:
        return value
    wanted = "a number from 0 to 1"
    if isinstance(default, int):
        wanted = f"an integer from {low}" + (f" to {most}" if value > most else "")
    raise WorkloadError(f"{key}={text[:40]!r} is not {wanted}", f"for example {key}={default}")


def _closest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
