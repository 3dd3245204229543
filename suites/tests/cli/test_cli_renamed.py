"""Commands of version 0.13 still run: every old name stands for its new one, with a notice."""

from __future__ import annotations

import pytest

from kvproof.harness.cli.app import app
from kvproof.harness.cli.renamed import OPTIONS, VERBS, current
from kvproof.suites.tests.cli.cli_kit import here


def options_of(words: tuple[str, ...]) -> set[str]:
    """Options of a verb, or of the verbs below it."""
    verb = app[words[0]]
    below = [verb[name] for name in verb if not name.startswith("-")] or [verb]
    return {
        name for each in below for one in each.assemble_argument_collection() for name in one.names
    }


@pytest.mark.parametrize(("old", "new"), OPTIONS.items(), ids=" ".join)
def test_an_old_option_stands_for_an_option_of_its_verb(old: tuple[str, str], new: str) -> None:
    verb, name = old
    assert new in options_of((verb,))
    assert name not in options_of((verb,))
    found = current([verb, f"{name}=x", name, "y"])
    assert found.words == [verb, f"{new}=x", new, "y"]
    assert found.notices == [f"{name} is called {new} now; the old name ends with 0.15"] * 2


@pytest.mark.parametrize(("old", "new"), VERBS.items())
def test_an_old_verb_stands_for_a_verb(old: tuple[str, str], new: str) -> None:
    group, verb = old
    assert new in app[group]
    assert verb not in app[group]
    assert current([group, verb, verb]).words == [group, new, verb]


def test_words_of_another_program_stay() -> None:
    words = ["sweep", "--kernels", "--", "--where"]
    assert current(words) == (words, [])
    assert current(["run", "--where"]).words == ["run", "--where"]
    assert current([]) == ([], [])


def test_an_old_command_answers_like_the_new_one(tmp_path) -> None:
    new, old = (here("targets", verb, "reference", cwd=tmp_path) for verb in ("show", "profile"))
    assert (old.code, old.out) == (new.code, new.out)
    assert old.err == "kvproof: profile is called show now; the old name ends with 0.15\n"
    assert new.err == ""


def test_an_old_option_is_refused_by_its_new_name(tmp_path) -> None:
    done = here("sweep", "--where", "page", cwd=tmp_path)
    assert done.code == 2
    assert "--filter 'page' is not AXIS=VALUE" in done.err
