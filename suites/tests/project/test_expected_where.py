"""Expected failures that are confined to a situation: what they excuse, and that they hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from kvproof import harness
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import EngineVersion, state
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import Counterexample, History
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.explore import Watch
from kvproof.suites.framework.suite import Suite
from kvproof.suites.framework.verdicts import Tally, verdicts
from kvproof.suites.runner import levels
from kvproof.suites.runner.levels import property_names
from kvproof.suites.runner.replay import replay

PROPERTY, PLACE = "hits_are_valid_in_every_group", "chunks begin inside blocks"
ENTRY = Expected(PROPERTY, "null blocks", "https://x/1", PLACE)
FINDINGS = Path(expected_failures.__file__).parents[1] / "findings"


def violated(*situations: str, prop: str = PROPERTY) -> Counterexample:
    history = SimpleNamespace(coverage=SimpleNamespace(situations=Counter(situations)))
    violation = Violation(prop, "brute force", "it is gone")
    return Counterexample(violation, cast("History", history))


def watch() -> Watch:
    return Watch(lambda _: (1, 1), confined={PROPERTY: PLACE})


def happens(watch: Watch, found: Counterexample) -> None:
    with watch.operation(found.history):
        raise found.violation


def ends_quietly(watch: Watch, found: Counterexample) -> None:
    @settings(database=None)
    @given(st.none())
    def history(_: None) -> None:
        happens(watch, found)

    with pytest.raises(Unsatisfiable):
        history()


def test_a_history_in_which_the_situation_occurred_ends_quietly() -> None:
    ours = watch()
    ends_quietly(ours, violated("a refusal: no_space", PLACE))
    assert (ours.seen.violation, ours.seen.tolerated) == (None, {PROPERTY: 1})


def test_it_is_not_claimed_by_whoever_meets_it() -> None:
    claimed: list[str] = []
    ours = Watch(lambda _: (1, 1), claim=_claiming(claimed), confined={PROPERTY: PLACE})
    ends_quietly(ours, violated(PLACE))
    assert (claimed, ours.seen.unshrunk) == ([], {})
    with pytest.raises(Violation):
        happens(ours, violated())
    assert claimed == [PROPERTY]


def test_what_fails_while_another_is_shrunk_is_counted_and_not_claimed() -> None:
    claimed: list[str] = []
    ours = Watch(lambda _: (1, 1), claim=_claiming(claimed))
    with pytest.raises(Violation):
        happens(ours, violated())
    ends_quietly(ours, violated(prop="hits_are_maximal"))
    assert (claimed, ours.seen.unshrunk) == ([PROPERTY], {"hits_are_maximal": 1})


def _claiming(claimed: list[str]) -> Callable[[str], bool]:
    def claim(name: str) -> bool:
        claimed.append(name)
        return True

    return claim


@pytest.mark.parametrize(
    "found", [violated("a refusal: no_space"), violated(PLACE, prop="hits_are_maximal")]
)
def test_anything_else_is_a_failure(found: Counterexample) -> None:
    ours = watch()
    with pytest.raises(Violation):
        happens(ours, found)
    assert ours.seen.counterexample == found
    assert not ours.seen.tolerated


def told(tally: Tally) -> str:
    prop = next(p for p in levels.properties("full") if p.name == PROPERTY)
    suite = cast(
        "Suite", SimpleNamespace(name="cache", properties=(prop,), beyond=(), why_not=lambda _: "")
    )
    return verdicts("t", suite, tally, {PROPERTY: ENTRY}, level="full")[0].verdict


def tally(**more: object) -> Tally:
    prop = next(p for p in levels.properties("full") if p.name == PROPERTY)
    counts = Counter(dict.fromkeys(prop.situations, 1))
    return Tally(situations=counts, checks=Counter({PROPERTY: 9}), **more)  # type: ignore[arg-type]  # by name


def test_a_run_that_saw_it_says_so_and_one_without_it_passes() -> None:
    assert told(tally(tolerated=Counter({PROPERTY: 2}))) == "expected_failure"
    assert told(tally()) == "pass"


def test_a_failure_elsewhere_counts_beside_it() -> None:
    failure = SimpleNamespace(sentence="gone", oracle="brute force", fingerprint="f")
    found = tally(tolerated=Counter({PROPERTY: 2}), failures={PROPERTY: failure})
    assert told(found) == "fail"


def test_a_failure_that_nobody_shrunk_is_a_failure() -> None:
    found = tally(tolerated=Counter({PROPERTY: 2}), unshrunk=Counter({PROPERTY: 3}))
    assert told(found) == "fail"


def confined() -> Iterator[tuple[EngineVersion, Expected]]:
    for path in sorted(expected_failures.FOLDER.glob("*.toml")):
        engine, version = path.stem.split("-", 1)
        for entry in expected_failures.load(engine, version, names=property_names()).values():
            if entry.where:
                yield EngineVersion(engine, version), entry


def test_there_are_such_entries_and_each_names_a_situation() -> None:
    entries = [entry for _, entry in confined()]
    assert entries
    folder = Path(harness.__path__[0])
    files = [*folder.glob("oracle/coverage*.py"), *folder.glob("whole_engine/*.py")]
    words = "".join(path.read_text() for path in files)
    assert [entry.where for entry in entries if f'"{entry.where}"' not in words] == []


def findings() -> dict[tuple[EngineVersion, Path], str]:
    """Return (engine, history) -> name of what an entry says is a finding."""
    found: dict[tuple[EngineVersion, Path], str] = {}
    for engine, entry in confined():
        for name in re.findall(r"suites/findings/(\w+)", entry.reason):
            found[engine, FINDINGS / name / "history.json"] = f"{engine}-{name}"
    return found


CASES = findings()


def test_what_is_known_of_current_releases_has_a_history() -> None:
    assert {engine.engine for engine, _ in CASES} == {"vllm", "sglang", "lmdeploy"}
    assert all(log.exists() for _, log in CASES)


@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize(("engine", "log"), CASES, ids=CASES.values())
def test_its_history_fails_on(engine: EngineVersion, log: Path, tmp_path: Path) -> None:
    if state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")
    try:
        opened = open_handle(str(engine), log_directory=tmp_path)
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with opened as handle:
        assert replay(handle, log).outcome == "FAILED"
