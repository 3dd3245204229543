"""Measures how often the verdicts of `kvproof eval` find a broken cache, and how often they err.

python -m kvproof.suites.tests.lab.eval_power --runs 20 --correct 200
python -m kvproof.suites.tests.lab.eval_power --check runs/latest
python -m kvproof.suites.tests.lab.eval_power --noise 1000 --limit 300 --kept noise.json
python -m kvproof.suites.tests.lab.eval_power --faults-in "16 bits, dense" --runs 20 --sizes 48

Simulated hits go through the verdicts themselves: `judge` of divergences, `compare` of letters and
of texts. Each sample has a warm and a shared hit. Effects of four faults are those of real runs of
eval/configs/divergence_faults.toml with the shipped probe model; --check compares such a run with
the simulation. --noise draws correct engines of many kinds and counts false alarms of divergence,
and then those engines with a wrong block in the hits of one situation; with --limit
and --kept in pieces. --faults-in prints the
faults alone, in an engine of this noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from kvproof.eval.benchmark.data import LETTERS
from kvproof.eval.divergence.judge import judge
from kvproof.eval.divergence.records import (
    Evidence,
    Options,
    Pair,
    Role,
    Served,
    evidence,
)
from kvproof.eval.run.config import Configuration, EvalConfig, Judge, Server
from kvproof.eval.run.records import PHASES, Abilities, Phase, SampleRecord, read_eval
from kvproof.eval.verdict.compare import compare
from kvproof.harness.http.completion import Usage
from kvproof.suites.tests.lab.eval_power import alarms
from kvproof.suites.tests.lab.eval_power.faults import FAULTS, Effect, Fault

SIZES = (24, 48, 503)
URL = Server(base_url="http://127.0.0.1:9/v1")
ABLE = Abilities(top=5, token_ids=True, ignore_eos=True, salt=True)


class Noise(NamedTuple):
    """A correct engine: median of largest differences, share of answers that near ties flip."""

    name: str
    nats: float
    flips: float = 0.0
    control_flips: bool = True
    """Without it the control repeats the first run."""
    far: float = 0.0
    """Share of answers that are off by nats, as where experts are chosen at a near tie."""


NOISES = (
    Noise("exact", 0.0),
    Noise("float32", 8e-6),
    Noise("16 bits, near ties, a silent control", 0.01, 0.008, control_flips=False),
    Noise("16 bits, near ties in all runs", 0.01, 0.03),
    Noise("16 bits, dense", 0.02, 0.02),
    Noise("16 bits, with experts", 0.05, 0.04, far=0.01),
)
_ENGINES = ("float32", "16 bits, dense", "16 bits, with experts")
"""Engines whose faults have a table."""


class Struck(NamedTuple):
    """One hit of a run."""

    nats: float
    text: bool
    letter: bool


def hits(fault: Fault | None, noise: Noise, samples: int, rng: np.random.Generator) -> list[Struck]:
    """Draw the warm and the shared hit of every sample, in this order."""
    reach = rng.random(samples) < (fault.share if fault else 0)
    turn, found = int(rng.integers(fault.every)) if fault else 0, []
    for at in range(2 * samples):
        turn += 1
        if fault and reach[at // 2] and turn % fault.every == 0:
            found.append(_struck(fault.effect, noise, rng))
        else:
            found.append(Struck(_drawn(noise, rng), text=False, letter=False))
    return found


def _struck(effect: Effect, noise: Noise, rng: np.random.Generator) -> Struck:
    text = bool(rng.random() < effect.text)
    letter = text and bool(rng.random() < effect.letter / effect.text)
    return Struck(max(effect.draw(rng), _drawn(noise, rng)), text, letter)


def _drawn(noise: Noise, rng: np.random.Generator) -> float:
    if noise.far and rng.random() < noise.far:
        return float(rng.uniform(0.5, 12.0))
    return float(rng.lognormal(np.log(noise.nats), 0.4)) if noise.nats else 0.0


# --- divergence ---


def by_divergence(found: Sequence[Struck], noise: Noise, rng: np.random.Generator) -> str:
    """Judge the differences of all hits against three floors."""
    chunks = replace(_served("chunks", "control"), settings={"chunk": 96})
    records: list[Evidence] = [_served("off", "base"), chunks, _served("on", "judged")]
    for at, hit in enumerate(found):
        records.append(_measured("on", at, hit.nats, "warm" if at % 2 == 0 else "shared"))
        for name, phase in _FLOORS:
            value = _drawn(noise, rng)
            records.append(
                replace(_measured(name, at, value, phase), control=True, cached_tokens=0)
            )
    return judge(Options(exact=noise.nats == 0), records).verdict


_FLOORS: tuple[tuple[str, Phase], ...] = (
    ("off", "again"),
    ("off", "together"),
    ("chunks", "again"),
)


def _served(name: str, role: Role) -> Served:
    return Served(
        configuration=name, role=role, url="", model="m", abilities=ABLE, engine="", version="",
        prefix_cache=role == "judged", settings={}, command=(),
    )  # fmt: skip


def _measured(name: str, at: int, nats: float, phase: Phase) -> Pair:
    return Pair(
        configuration=name, control=False, phase=phase, text="whole", number=at // 2,
        prompt_tokens=1000, cached_tokens=960, expected_cached=0, places=(0,), largest=(nats,),
        kl=(nats * nats,), flips=0, left=0, requests=1, seconds=0.0,
    )  # fmt: skip


# --- letters and texts ---


def by_answers(rule: str, found: Sequence[Struck], noise: Noise, rng: np.random.Generator) -> str:
    """Compare the letters, or texts, of off, off again and on; 97 % are right."""
    samples = len(found) // 2
    ties = rng.random(len(found)) < 2 * noise.flips
    off = ties & (rng.random(len(found)) < 0.5)
    again = off if not noise.control_flips else ties & (rng.random(len(found)) < 0.5)
    on = ties & (rng.random(len(found)) < 0.5)
    records = [*_with(_side("off", samples), _tied(off), rng)]
    records += _with(_side("off again", samples), _tied(again), rng)
    mine = [hit if hit.text else tied for hit, tied in zip(found, _tied(on), strict=True)]
    records += _with(_side("on", samples), mine, rng)
    return compare(_config(rule), records, samples).verdict


def _tied(wrong: npt.NDArray[np.bool_]) -> list[Struck]:
    """Answers at a near tie, which fall either way in each run."""
    return [Struck(0.0, text=bool(each), letter=bool(each)) for each in wrong]


def _config(rule: str) -> EvalConfig:
    return EvalConfig(
        judge=Judge(rule="texts" if rule == "texts" else "answers"),
        configuration=(
            Configuration(name="off", prefix_cache=False, server=URL),
            Configuration(name="off again", control=True, prefix_cache=False, server=URL),
            Configuration(name="on", server=URL),
        ),
    )


@cache
def _side(name: str, samples: int) -> tuple[SampleRecord, ...]:
    return tuple(_record(name, phase, number) for phase in PHASES for number in range(samples))


def _record(name: str, phase: Phase, number: int) -> SampleRecord:
    expected = LETTERS[number % 4]
    given = expected if number % 33 else LETTERS[(number + 1) % 4]
    cached = 960 if name == "on" and phase != "cold" else 0
    return SampleRecord(
        configuration=name,
        phase=phase,
        repeat=0,
        number=number,
        id=str(number),
        domain="d",
        sub_domain="s",
        difficulty="easy",
        length="short",
        expected=expected,
        outcome="answered",
        text=f"{number} ({given})",
        answer=given,
        finish_reason="stop",
        usage=Usage(prompt_tokens=1000, cached_tokens=cached),
        seconds=1.0,
        first_token=0.1,
        started=0.0,
        tries=1,
        faults=(),
        prompt_sha256=str(number),
        cut=False,
    )  # fmt: skip


def _with(
    side: Sequence[SampleRecord], found: Sequence[Struck], rng: np.random.Generator
) -> Iterator[SampleRecord]:
    for each in side:
        if each.phase == "cold":
            yield each
            continue
        hit = found[2 * each.number + (each.phase == "shared")]
        yield _changed(each, hit, rng) if hit.text else each


def _changed(each: SampleRecord, hit: Struck, rng: np.random.Generator) -> SampleRecord:
    if not hit.letter:
        return replace(each, text=f"{each.text}.")
    others = [letter for letter in LETTERS if letter != each.answer]
    given = others[int(rng.integers(3))] if hit.nats else others[0]  # a tie has two letters
    return replace(each, text=f"{each.number} ({given})", answer=given)


# --- tables ---

METHODS: dict[str, Callable[[Sequence[Struck], Noise, np.random.Generator], str]] = {
    "divergence": by_divergence,
    "letters": lambda *case: by_answers("answers", *case),
    "texts": lambda *case: by_answers("texts", *case),
}


def verdicts(fault: Fault | None, noise: Noise, samples: int, runs: int) -> dict[str, Counter[str]]:
    """Verdicts of each method over so many runs."""
    found: dict[str, Counter[str]] = {name: Counter() for name in METHODS}
    for seed in range(runs):
        rng = np.random.default_rng([seed, samples])
        drawn = hits(fault, noise, samples, rng)
        for name, method in METHODS.items():
            found[name][method(drawn, noise, rng)] += 1
    return found


def table(
    title: str, rows: Sequence[tuple[str, Fault | None, Noise]], runs: int, sizes: Sequence[int]
) -> None:
    """Print one table as Markdown: percent of runs that fail / that pass."""
    head = [f"{name}, {size}" for name in METHODS for size in sizes]
    say(f"\n{title}, {runs} runs: percent FAIL / percent pass\n")
    say(f"| | {' | '.join(head)} |\n| --- |{' --: |' * len(head)}")
    for name, fault, noise in rows:
        by = {size: verdicts(fault, noise, size, runs) for size in sizes}
        cells = [_cell(by[size][method], runs) for method in METHODS for size in sizes]
        say(f"| {name} | {' | '.join(cells)} |")


def _cell(found: Counter[str], runs: int) -> str:
    return f"{100 * found['fail'] / runs:.0f} / {100 * found['pass'] / runs:.0f}"


def say(line: str) -> None:
    """Print a line at once: a table takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check(directory: Path) -> None:
    """Compare a real run with the simulation: differences of struck hits, and verdicts."""
    options, records = evidence(read_eval(directory))
    rows = judge(options, records).rows
    say("| fault | hits | beyond | median of those | simulated median | verdict |")
    say("| --- | --: | --: | --: | --: | --- |")
    for row in rows:
        of = [e for e in records if isinstance(e, Pair) and e.hit]
        mine = [max(e.largest) for e in of if e.configuration == row.configuration]
        beyond = [value for value in mine if value > row.limit]
        fault = next((each for each in FAULTS if each.name == row.configuration), None)
        shown = f"{fault.effect.quantiles[3]:.2g}" if fault else "-"
        median = f"{np.median(beyond):.2g}" if beyond else "-"
        cells = (row.configuration, len(mine), len(beyond), median, shown, row.verdict)
        say(f"| {' | '.join(map(str, cells))} |")


def noise(runs: int, limit: float, kept: Path | None) -> None:
    """Print how often correct engines fail, and how often broken ones do."""
    found, until = alarms.read(kept), time.monotonic() + limit
    for title, cases in zip(("Correct", "Wrong block"), alarms.cases(runs), strict=True):
        alarms.judged(cases, found, until=until)
        say("\n".join(("", title, "", *alarms.rows(cases, found))))
    if kept:
        kept.write_bytes(msgspec.json.encode(found))


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each fault")
    parser.add_argument("--correct", type=int, default=200, help="of each correct engine")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="samples of a run")
    parser.add_argument("--check", type=Path, help="a run of kvproof eval divergence")
    parser.add_argument("--noise", type=int, help="runs of each model of noise, and no other table")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of --noise")
    parser.add_argument("--kept", type=Path, help="file of --noise; the same command goes on")
    parser.add_argument("--faults-in", choices=_ENGINES, help="an engine, and no other table")
    asked = parser.parse_args()
    if asked.noise:
        noise(asked.noise, asked.limit, asked.kept)
        return 0
    if asked.check:
        check(asked.check)
        return 0
    correct = [(each.name, None, each) for each in NOISES]
    if asked.correct and not asked.faults_in:
        table("Correct", correct, asked.correct, asked.sizes)
    names = (asked.faults_in,) if asked.faults_in else _ENGINES
    for engine in (each for each in NOISES if asked.runs and each.name in names):
        broken = [(each.name, each, engine) for each in FAULTS]
        table(f"Faults in {engine.name}", broken, asked.runs, asked.sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
