"""vLLM's scheduler over every kind of group: right steps are judged clean, planted bugs are not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.recording import Recording, recordings
from kvproof.harness.recorder.tables import edit, edited, fresh
from kvproof.harness.recorder.verdict import judge
from kvproof.suites.tests.cli.cli_kit import KVPROOF
from kvproof.suites.tests.recorder import group_jobs
from kvproof.suites.tests.recorder.record_kit import only

SPEC = "vllm==0.33.0"

BUGS = {
    "window:early": "blocks_behind_a_window_outlive_running_steps",
    "window:shifted": "table_never_shifts",
    "unequal:early": "blocks_behind_a_window_outlive_running_steps",
    "chunk:early": "blocks_behind_a_window_outlive_running_steps",
    "latent_window:early": "blocks_behind_a_window_outlive_running_steps",
    "chunk:shifted": "table_never_shifts",
    "three:full_shifted": "table_never_shifts",
    "three:chunk_shifted": "table_never_shifts",
    "state:wrong": "states_are_of_exactly_the_tokens_read",
    "state:freed": "groups_never_share_blocks",
    "draft:cached": "reads_return_own_content",
    "draft:freed": "a_hit_block_survives_its_own_admission",
}
"""Case and planted bug -> the property that says so."""

SOUND = tuple(group_jobs.CASES)


def _recorded(folder: Path, names: list[str], size: str = "1G") -> dict[str, Recording]:
    engine = environments.parse(SPEC)
    if environments.state(engine) == "missing":
        pytest.skip(f"{SPEC} is not installed: kvproof targets install {SPEC}")
    job = [str(engine.python), group_jobs.__file__, "1", *names]
    ran = subprocess.run(
        [KVPROOF, "record", "--max-size", size, "--output", str(folder), "--", *job],
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = sorted(recordings(folder), key=lambda each: int(each.name.rpartition("-")[2]))
    return dict(zip(names, found, strict=True))


@pytest.mark.nightly(reason="a minute: twelve layouts and bugs")
@pytest.mark.slow(reason="runs an installed engine")
def test_every_kind_of_group_is_judged_and_its_bugs_are_named(tmp_path: Path) -> None:
    found = _recorded(tmp_path / "recorded", [*SOUND, *BUGS])
    for name in SOUND:
        judged = judge(found[name])
        assert (name, judged.broken, judged.stopped) == (name, None, "")
        assert judged.requests > 50
        assert all(judged.happened[what] for what in ("hit", "evicted block", "reset")), name
    for name, prop in BUGS.items():
        broken = judge(found[name]).broken
        assert broken is not None, name
        assert (name, broken.violation.property) == (name, prop)
    assert any("state" in each for each in found["state"].header.unjudged)


@pytest.mark.nightly(reason="half a minute: twelve layouts")
@pytest.mark.slow(reason="runs an installed engine")
def test_every_kind_of_group_is_judged_from_any_file_on(tmp_path: Path) -> None:
    for name, recording in _recorded(tmp_path / "recorded", list(SOUND), "40K").items():
        judged = judge(recording)
        assert recording.dropped > 0
        assert (name, judged.broken, judged.stopped) == (name, None, "")
        assert judged.trusted > 0


GROUPS = ({"kind": "full", "block_size": 4}, {"kind": "window", "block_size": 4, "size": 6})


def windowed(folder: Path, after: tuple[int, ...]) -> Recording:
    """A request of two groups; `after`: its window's table as it goes on from token 13."""
    cache = Cache("toy", "1", 64, 4, groups=GROUPS)
    to = LogWriter(cache, Settings(folder), lambda tokens, a, b: tokens[a:b])
    tokens = list(range(12))
    tables = (1, 2, 3), (4, 5, 6)
    to.admit(tokens, Arrival("a"), known=12, hit=0, stop=12, blocks=tables)
    tokens += [50, 51]
    to.change("a", 13, (12, 13), ((1, 2, 3, 7), (0, 5, 6, 8)))
    to.change("a", 14, (13, 14), ((1, 2, 3, 7), after))
    to.release("a", "finish", ((1, 2, 3, 7), after))
    return only(folder)


@pytest.mark.parametrize(
    ("after", "prop"),
    [
        ((0, 0, 6, 8), ""),
        ((0, 0, 0, 8), "blocks_behind_a_window_outlive_running_steps"),
        ((0, 5, 6, 8), "blocks_behind_a_window_are_returned"),
        ((0, 0, 8, 6), "table_never_shifts"),
        ((0, 0, 6, 7), "table_never_shifts"),
    ],
)
def test_the_table_of_a_window_is_judged(tmp_path: Path, after: tuple[int, ...], prop: str) -> None:
    broken = judge(windowed(tmp_path, after)).broken
    assert (broken.violation.property if broken else "") == prop


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((), (0, 0, 7, 8)),
        ((1, 2, 3), (1, 2, 3, 4)),
        ((1, 2, 3), (0, 0, 3, 4)),
        ((0, 0, 3), (0, 0, 0, 0, 9)),
        ((1, 2, 3), (1, 5, 3)),
        ((1, 2, 3), (1,)),
        ((1, 2), (0, 0)),
        ((0, 3), (3, 0)),
    ],
)
def test_an_edit_turns_one_table_into_the_other(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    assert edited(old, edit(old, new)) == new


def test_an_edit_has_the_news_alone() -> None:
    assert edit((0, 0, 3, 4), (0, 0, 0, 4, 5)) == [3, 4, 5]


def test_a_block_that_came_back_at_once_is_fresh() -> None:
    assert fresh((0, 16, 15), (0, 0, 15, 16)) == (16,)


@pytest.mark.parametrize("change", [[2, 1], [0, 4], [-1, 0]])
def test_an_edit_that_does_not_fit_is_refused(change: list[int]) -> None:
    with pytest.raises(ValueError, match="an edit of"):
        edited((1, 2, 3), change)
