"""Differences between two sides besides the code, and the comparisons that they forbid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvproof.harness.records.events import TargetStarted
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_results import started

NOTHING = "nothing"


class Difference(NamedTuple):
    """One fact that is not the same on both sides."""

    what: str
    base: str
    head: str
    forbids: str = ""
    """Why figures must not be compared across it; empty: they may."""


MACHINE = "times of one machine say nothing about another"
CARD = "times of one card say nothing about another"


def differences(base: Sequence[Run], head: Sequence[Run]) -> list[Difference]:
    """Facts in which the sides differ, those that forbid something first."""
    found = [
        *_facts(base, head, lambda run: run.manifest.hardware, "machine", MACHINE),
        *_facts(base, head, _cards, "GPU", CARD),
        *_facts(base, head, lambda run: run.manifest.versions, "version", ""),
        *_facts(base, head, _engines, "engine", ""),
        *_facts(base, head, _depth, "settings", ""),
        *_facts(base, head, lambda run: {"commit": run.manifest.commit or "unknown"}, "", ""),
    ]
    return sorted(found, key=lambda each: not each.forbids)


def _facts(
    base: Sequence[Run],
    head: Sequence[Run],
    facts: Callable[[Run], Mapping[str, str]],
    kind: str,
    forbids: str,
) -> list[Difference]:
    before, after = _values(base, facts), _values(head, facts)
    return [
        Difference(
            f"{kind} {name}".strip(), _words(before.get(name)), _words(after.get(name)), forbids
        )
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
        and (not forbids or (name in before and name in after))
    ]


def _values(runs: Sequence[Run], facts: Callable[[Run], Mapping[str, str]]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, value in facts(run).items():
            found.setdefault(name, set()).add(value)
    return {name: sorted(values) for name, values in found.items()}


def _words(values: Sequence[str] | None) -> str:
    return ", ".join(values) if values else NOTHING


def _cards(run: Run) -> Mapping[str, str]:
    begun = started(run.events)
    if begun is None:
        return {}
    return {"": ", ".join(sorted({device.name for device in begun.devices}))}


def _engines(run: Run) -> Mapping[str, str]:
    begun = started(run.events)
    providers = {p.name: p.version for p in begun.providers if p.version} if begun else {}
    targets = {e.engine: e.version for e in run.events if isinstance(e, TargetStarted)}
    drivers = {device.facts.get("driver", "") for device in begun.devices} if begun else {}
    driver = {"driver": ", ".join(sorted(drivers))} if any(drivers) else {}
    return {**(begun.versions if begun else {}), **driver, **providers, **targets}


_DEPTH = ("level", "budget", "seeds", "workload", "requests")


def _depth(run: Run) -> Mapping[str, str]:
    """Conditions of a verdict besides the target."""
    config = run.manifest.config
    whole = {**config, **_table(config, "run"), **_table(config, "gate")}
    return {name: str(whole[name]) for name in _DEPTH if name in whole}


def _table(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}
