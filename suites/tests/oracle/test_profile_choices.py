"""No field of a profile takes a value that is not legal: all are walked, by their annotations."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, make_dataclass, replace
from pathlib import Path

import pytest

from kvproof.harness.checked import wrong_fields
from kvproof.harness.contract.profile import (
    LayerProfile,
    PolicyProfile,
    Profile,
    wrong_choices,
)
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import OwnTargets, open_handle
from kvproof.suites.tests.adapters.worker_fakes import Toy
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.oracle.choices_kit import illegal, walked

FAKES = "kvproof.suites.tests.adapters.worker_fakes"
GOOD = Profile(engine="toy", version="1", block_sizes=(4,))
FIELDS = dict(walked(Profile))


def with_value(path: tuple[str, ...], value: object) -> Profile:
    if len(path) == 1:
        return replace(GOOD, **{path[0]: value})
    group = replace(getattr(GOOD, path[0]), **{path[1]: value})
    return replace(GOOD, **{path[0]: group})


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_an_illegal_value_of_any_field_is_refused(path: tuple[str, ...]) -> None:
    assert list(wrong_choices(GOOD)) == []
    for value in illegal(path, FIELDS[path]):
        (found, *_) = list(wrong_choices(with_value(path, value))) or [None]
        assert found is not None, value
        assert found.field.startswith(".".join(path))
        assert found.legal


def test_every_group_of_the_profile_is_walked() -> None:
    groups = [each.name for each in fields(Profile) if is_dataclass(getattr(GOOD, each.name))]
    assert {path[0] for path in FIELDS if len(path) == 2} == set(groups)
    assert len(FIELDS) > 60


def test_a_list_or_a_subclass_is_as_good() -> None:
    class Mine(str):
        pass

    assert not [*wrong_fields(replace(GOOD, block_sizes=[4, 16], engine=Mine("toy")), Profile)]


@pytest.mark.parametrize("hint", ["int", "float", "list[int]", "tuple[int, ...]", "dict[str, int]"])
def test_a_new_field_cannot_be_forgotten(hint: str) -> None:
    kind = make_dataclass("Kind", [("size", hint)])
    with pytest.raises(TypeError, match=r"Kind\.size: nothing checks"):
        list(wrong_fields(kind(4)))


@pytest.mark.parametrize("options", [OwnTargets(), OwnTargets(in_process=True)])
@pytest.mark.parametrize(
    ("profile", "line"),
    [
        ("make_maybe", "policy.duplicates = 'maybe', legal: 'shared' or 'kept'"),
        ("make_sizeless", "block_sizes = (), legal: "),
        ("make_negative", "block_sizes[1] = -4, legal: a whole number, 1 to "),
    ],
)
def test_a_target_with_an_illegal_profile_does_not_open(
    profile: str, line: str, options: OwnTargets
) -> None:
    with pytest.raises(UsageError) as error:
        open_handle(f"{FAKES}:{profile}", options=options)
    assert line in str(error.value)
    assert f"{FAKES}:{profile}" in error.value.hint


def test_a_typo_in_a_profile_ends_the_command_with_2(tmp_path: Path) -> None:
    done = here("run", "--target", f"{FAKES}:make_maybe", "--budget", "debug", cwd=tmp_path)
    refused(done, "policy.duplicates = 'maybe', legal: 'shared' or 'kept'")
    assert not list(tmp_path.iterdir())


def test_a_component_suite_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = here("run", "--target", f"{FAKES}:make_unknown_suite", "--budget", "debug", cwd=tmp_path)
    refused(done, "component_suites, key = 'hitz', legal: 'hits' or ")


def test_flat_names_are_checked_too() -> None:
    (wrong,) = wrong_choices(replace(Toy.profile, index="forest"))
    assert (wrong.field, wrong.value) == ("policy.index", "'forest'")
    layers = LayerProfile(layouts=(("full", "window"), ("fulll",)))
    (wrong,) = wrong_choices(replace(GOOD, layers=layers, policy=PolicyProfile()))
    assert wrong.field == "layers.layouts[1][0]"
