"""The page Write a target: its code runs, its values are legal, the API has all that it needs."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import replace
from functools import reduce
from typing import Any, get_args, get_type_hints

import pytest

from kvproof.harness import api, skeleton_target
from kvproof.harness.contract.profile import PolicyProfile, Profile, wrong_choices
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents.site import DOCS

PAGE = (DOCS / "test" / "write-a-target.md").read_text(encoding="utf-8")


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def rows(heading: str) -> list[list[str]]:
    """Cells of the rows of the first table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_code_of_the_page_runs() -> None:
    names: dict[str, Any] = {each: getattr(api, each) for each in api.__all__}
    for block in code_blocks():
        exec(block, names)
    assert len(code_blocks()) == 2
    assert list(wrong_choices(names["PROFILE"])) == []
    assert names["PROFILE"].duplicates == "kept"


def test_the_table_of_the_profile_has_20_fields() -> None:
    table = rows("The profile in 20 fields")
    assert len(table) == 20
    names = {field.name for field in dataclasses.fields(Profile)}
    groups = {f"{group}.{inner}" for group in names for inner in inner_fields(group)}
    assert {name for row in table for name in quoted(row[0])} <= names | groups


def inner_fields(group: str) -> set[str]:
    value = Profile.__dataclass_fields__[group].default
    found = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {each.name for each in found}


@pytest.mark.parametrize("column", [1, 2, 3], ids=["vllm", "sglang", "own design"])
def test_every_column_of_the_table_is_a_profile(column: int) -> None:
    start = Profile(engine="e", version="1", block_sizes=(1,))
    cells = [(name, quoted(row[column])) for row in rows("The profile in 20 fields")
             for name in quoted(row[0])]  # fmt: skip
    chosen = {name: ast.literal_eval(values[0]) for name, values in cells if values}
    assert len(chosen) >= 18
    assert list(wrong_choices(reduce(with_field, chosen.items(), start))) == []


def with_field(profile: Profile, chosen: tuple[str, Any]) -> Profile:
    group, _, inner = chosen[0].rpartition(".")
    if not group:
        return replace(profile, **{inner: chosen[1]})
    return replace(profile, **{group: replace(getattr(profile, group), **{inner: chosen[1]})})


def test_the_table_of_policies_has_their_legal_values() -> None:
    hints = get_type_hints(PolicyProfile)
    for field, values, judges in rows("Declare a policy"):
        (name,) = quoted(field)
        legal = set(get_args(hints[name]))
        assert set(quoted(values)) - {'Refused("busy")'} == legal or hints[name] is bool
        assert set(quoted(judges)) <= {*property_names()}


def test_the_properties_of_the_page_exist() -> None:
    steps = quoted(PAGE.partition("| step |")[2].partition("\n\n")[0])
    first = [row[0] for row in rows("Five first failures")]
    named = steps + [name for cell in first for name in re.findall(r"`(\w+)`[:,]", cell)]
    found = {each for each in named if "_" in each and "." not in each}
    assert len(first) == 5
    assert len(found) >= 10
    assert found <= {*property_names()}


def classes_of(hint: Any, seen: set[type]) -> set[type]:
    """Classes of kvproof in a type, and in the fields of these."""
    for each in get_args(hint):
        classes_of(each, seen)
    ours = isinstance(hint, type) and hint.__module__.startswith("kvproof.")
    if ours and hint not in seen:
        seen.add(hint)
        if dataclasses.is_dataclass(hint):
            for inner in get_type_hints(hint).values():
                classes_of(inner, seen)
    return seen


def test_the_api_exports_every_class_that_a_target_meets() -> None:
    verbs = [get_type_hints(verb) for verb in vars(Target).values() if callable(verb)]
    hints = [Profile, TargetConfig, *(hint for verb in verbs for hint in verb.values())]
    met = reduce(lambda seen, hint: classes_of(hint, seen), hints, set[type]())
    assert {each.__name__ for each in met} - {*api.__all__} == set()
    assert {"PolicyProfile", "Retained", "Span"} <= {each.__name__ for each in met}
    assert all(hasattr(api, name) for name in api.__all__)


def test_the_skeleton_has_the_verbs_of_the_page() -> None:
    table = rows("Which verbs first")
    verbs = {name for row in table for name in re.findall(r"`(\w+)\(", row[1])}
    assert {"admit", "extend", "complete", "finish", "cancel", "preempt", "close"} < verbs
    assert all(callable(getattr(skeleton_target.MyTarget, verb)) for verb in verbs)
