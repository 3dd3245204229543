"""Known failures in the repository of their subject: `kvproof xfail`, and runs that expect them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvproof.harness.cli.app import main
from kvproof.harness.errors import Exit
from kvproof.harness.records.events import Failure, PropertyVerdict
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.framework.subject_failures import entry_text
from kvproof.suites.tests.known_failures import subject

TARGET = f"{subject.__name__}:make_target"
LOST = "hits_are_maximal"
LOG = Path(__file__).with_name("lost_hit.json")
COMMENT = '# mechanism = "package.module:function"'
MECHANISM = f'mechanism = "{subject.__name__}:one_block_is_hit"'


def code(*arguments: str) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def ran(folder: Path, bugs: set[str], *more: str) -> tuple[int, PropertyVerdict]:
    """Run at budget debug; returns the exit code, and the verdict of lost hits."""
    shutil.rmtree(folder, ignore_errors=True)
    subject.BUGS.clear()
    subject.BUGS.update(bugs)
    run = ("--target", TARGET, "--budget", "debug", "--in-process", "--output", str(folder))
    ended = code("run", *run, *more)
    events = read_run(folder).events
    (verdict,) = (e for e in events if isinstance(e, PropertyVerdict) and e.property == LOST)
    return ended, verdict


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """The known failure of an engine that hits at most one block."""
    file = tmp_path / "known.toml"
    shutil.copy(LOG, tmp_path)
    file.write_text(
        entry_text(TARGET, LOST, history=LOG.name, sentence="a second block is never hit")
    )
    return file


@pytest.mark.nightly(reason="half a minute of shrinking")
@pytest.mark.slow(reason="two runs shrink their failures")
def test_xfail_writes_what_the_next_run_expects(tmp_path: Path) -> None:
    first, file = tmp_path / "first", tmp_path / "known.toml"
    assert ran(first, {"short"})[0] == Exit.FAILURE
    assert code("xfail", str(first), "--output", str(file)) == Exit.PASS
    written = file.read_text()
    assert code("xfail", str(first), "--output", str(file)) == Exit.USAGE
    assert file.read_text() == written, "it has them all"
    _, verdict = ran(tmp_path / "again", {"short"}, "--known-failures", str(file))
    assert verdict.verdict == "expected_failure"
    assert "another bug of the property can hide after it" in verdict.reason
    failures = [e for e in read_run(tmp_path / "again").events if isinstance(e, Failure)]
    # `what_fits_is_admitted` fails, too; on a busy machine it is not always shrunk to the same end.
    assert LOST not in {each.property for each in failures}


@pytest.mark.parametrize("mechanism", [COMMENT, MECHANISM])
def test_what_no_longer_fails_is_red(known: Path, tmp_path: Path, mechanism: str) -> None:
    known.write_text(known.read_text().replace(COMMENT, mechanism))
    ended, verdict = ran(tmp_path / "run", set(), "--known-failures", str(known))
    assert (ended, verdict.verdict) == (Exit.FAILURE, "fail")
    assert "it was expected to fail and did not" in verdict.reason


@pytest.mark.nightly(reason="its parts run before each merge")
@pytest.mark.slow(reason="the failure of the other bug is shrunk")
def test_a_mechanism_excuses_its_bug_and_no_other_of_the_property(
    known: Path, tmp_path: Path
) -> None:
    known.write_text(known.read_text().replace(COMMENT, MECHANISM))
    given = ("--known-failures", str(known))
    assert ran(tmp_path / "run", {"short", "salted"}, *given)[1].verdict == "fail"
    failures = [e for e in read_run(tmp_path / "run").events if isinstance(e, Failure)]
    (lost,) = (each for each in failures if each.property == LOST)
    assert "salt" in lost.script, "the known failure has no salt"


def test_settings_name_the_file(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "kvproof.toml"
    settings.write_text('[run]\nknown_failures = "known.toml"\n')
    known.write_text("known_failure = 7")
    given = ("--target", TARGET, "--in-process", "--config", str(settings))
    assert code("run", *given, "--output", str(tmp_path / "run")) == Exit.USAGE
    assert "known.toml' has no known failures" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (LOST, "hits_are_maximum", "did you mean 'hits_are_maximal'?"),
        ("reason =", "raeson =", "raeson"),
        (LOG.name, "lost_miss.json", "cannot read op log"),
        (LOST, "what_fits_is_admitted", "its entry about 'what_fits_is_admitted'"),
        (COMMENT, 'mechanism = "nowhere:at_all"', "cannot be imported"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    known.write_text(known.read_text().replace(old, new, 1))
    output = tmp_path / "refused"
    given = ("--target", TARGET, "--in-process", "--known-failures", str(known))
    assert code("run", *given, "--output", str(output)) == Exit.USAGE
    assert words in " ".join(capsys.readouterr().err.split())
    assert not output.exists()
