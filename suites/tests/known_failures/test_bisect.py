"""`kvproof bisect`: where an outcome changes, over lists, and over the commits of a checkout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kvproof.harness.analysis.turning_point import Outcome, Tried, turning_point
from kvproof.harness.cli.app import main
from kvproof.harness.errors import Exit

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
LOG = HERE / "lost_hit.json"
WORDS: dict[str, Outcome] = {"F": "fails", "h": "holds", "?": "untested"}


@pytest.mark.parametrize("line", ["hhhFFFF", "FFFh", "hF", "h?F", "hh??FF", "h?F?F", "F???h?h"])
def test_the_change_is_between_two_neighbours(line: str) -> None:
    tried: list[str] = []

    def attempt(version: str) -> Tried:
        tried.append(version)
        return Tried(version, WORDS[line[int(version)]])

    found = turning_point(list(map(str, range(len(line)))), attempt)
    assert found is not None
    assert found.before.outcome == WORDS[line[0]]
    assert found.after.outcome == WORDS[line[-1]]
    low, high = int(found.before.version), int(found.after.version)
    assert set(line[low + 1 : high]) <= {"?"}
    assert found.between == tuple(map(str, range(low + 1, high)))
    assert len(tried) == len(set(tried)), "each at most once"


@pytest.mark.parametrize("line", ["hFFh", "F?F", "?hF", "hF?"])
def test_equal_or_untested_ends_decide_nothing(line: str) -> None:
    names = list(map(str, range(len(line))))
    assert turning_point(names, lambda name: Tried(name, WORDS[line[int(name)]])) is None


def test_few_versions_of_many_are_tried() -> None:
    tried: list[str] = []

    def attempt(version: str) -> Tried:
        tried.append(version)
        return Tried(version, "fails" if int(version) >= 613 else "holds")

    found = turning_point([str(at) for at in range(1000)], attempt)
    assert found is not None
    assert found.after.version == "613"
    assert len(tried) <= 12


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Seven commits of an engine: the fourth builds no more, the fifth loses hits."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "engine"
    folder.mkdir()
    git(folder, "init", "--quiet")
    source = (ROOT / "examples" / "my_engine.py").read_text()
    lost = source.replace("block is None:", "block is None or index:")
    assert lost != source
    for number in range(7):
        (folder / "bisected_engine.py").write_text(lost if number >= 4 else source)
        (folder / "number").write_text(str(number))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", f"change {number}")
    return folder


def code(*arguments: str) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def test_the_commit_is_found_and_the_checkout_is_left_alone(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "bisected_engine.py").write_text("work in progress")
    given = ("bisect", str(LOG), "--target", "bisected_engine:make_target")
    range_ = ("--checkout", str(checkout), "--first", "HEAD~6", "--last", "HEAD")
    build = ("--build", "test $(cat number) != 3")
    assert code(*given, *range_, *build) == Exit.PASS
    out = " ".join(capsys.readouterr().out.split())
    assert "change 4; " in out.partition("hits_are_maximal fails since ")[2]
    assert "the build ended with 1" in out
    assert (checkout / "bisected_engine.py").read_text() == "work in progress"
    done = subprocess.run(["git", "-C", str(checkout), "worktree", "list"], capture_output=True)
    assert len(done.stdout.splitlines()) == 1


def test_ends_that_agree_are_inconclusive(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("bisect", str(LOG), "--target", "bisected_engine:make_target")
    range_ = ("--checkout", str(checkout), "--first", "HEAD~6", "--last", "HEAD~5")
    assert code(*given, *range_) == Exit.INCONCLUSIVE
    assert "it holds at both ends" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--target", "nothing"), "'nothing' has 0 releases"),
        (("--target", "vllm", "--first", "0.0.1"), "'0.0.1' is none of the releases of vllm"),
        (("--target", "vllm", "--first", "0.33.0", "--last", "0.11.0"), "is not before"),
        (("--target", "vllm", "--wheel", "a.whl"), "1 wheels are no list"),
        (("--target", "vllm", "--checkout", "."), "--checkout needs --first and --last"),
        (("--target", "m:f", "--checkout", "/", "--first", "a", "--last", "b"), "not a git"),
        (("--target", "m:f", "--checkout", ".", "--first=--all", "--last", "b"), "is no commit"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str
) -> None:
    assert code("bisect", str(LOG), *more) == Exit.USAGE
    assert words in " ".join(capsys.readouterr().err.split())
