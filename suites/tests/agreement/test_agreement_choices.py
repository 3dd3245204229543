"""A failure of a property that depends on a declared choice names the field and the other value."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.profile import Profile, wrong_choices
from kvproof.harness.contract.target import Group, TargetConfig
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.records.events import Failure
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.conformance.properties import BY_NAME, supported
from kvproof.suites.conformance.suite import cache_suite, conformance
from kvproof.suites.framework.component_suite import Counterexample, counterexample
from kvproof.suites.runner.runner import stored_failure
from kvproof.suites.tests.agreement.lies import Lie, subject
from kvproof.suites.tests.agreement.test_agreement_cache import LIES
from kvproof.suites.tests.reports.report_kit import recorded_run, terminal_text, with_events

INTENDED = {name: prop.intended for name, prop in BY_NAME.items() if prop.intended}


def declaring(profile: Profile, text: str) -> Profile:
    """Return a profile with the declaration `Group(field=value)`."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    (keyword,) = call.keywords
    changed = {str(keyword.arg): ast.literal_eval(keyword.value)}
    name = next((each.name for each in fields(Profile) if each.type == ast.unparse(call.func)), "")
    before = getattr(profile, name) if name else profile
    assert replace(before, **changed) != before, "it is declared already"
    return replace(profile, **({name: replace(before, **changed)} if name else changed))


def broken(prop: str, intended: str = "") -> Counterexample | None:
    """Return how the lie about a property is found, with a declaration."""
    return found_lie(LIES[prop], intended)


def found_lie(lie: Lie, intended: str = "") -> Counterexample | None:
    """Return how a lie is found, with a declaration."""

    def make(config: TargetConfig) -> ReferenceTarget:
        target = subject(lie, config)
        if intended:
            target.profile = declaring(target.profile, intended)
        return target

    calls = [(ops.name(each), ops.compact(each)) for each in lie.history]
    suite = conformance(InProcessHandle("reference", make))
    return counterexample(suite, ops.compact(lie.config), calls)


def test_there_are_such_properties() -> None:
    assert INTENDED["equal_blocks_are_shared"] == "PolicyProfile(duplicates='kept')"


@pytest.mark.parametrize("prop", INTENDED)
def test_the_declaration_is_legal_and_ends_the_failure(prop: str) -> None:
    meant = declaring(make_target(TargetConfig(3, 2)).profile, INTENDED[prop])
    assert [*wrong_choices(meant)] == []
    found = broken(prop, INTENDED[prop])
    held = found is None or found.violation.property != prop
    assert held or not supported(BY_NAME[prop], meant), found


@pytest.mark.parametrize(
    ("draft", "declaration", "fails"),
    [
        ((), "StateProfile(junctions_with_drafts=False)", True),
        ((Group("full", 2, draft=True),), "", True),
        ((Group("full", 2, draft=True),), "StateProfile(junctions_with_drafts=False)", False),
    ],
)
def test_junctions_beside_drafts_may_be_left_out(
    draft: tuple[Group, ...], declaration: str, *, fails: bool
) -> None:
    lie = LIES["junctions_are_checkpointed"]
    config = replace(lie.config, groups=(*lie.config.groups, *draft))
    found = found_lie(lie._replace(config=config), declaration)
    assert found is not None
    assert (found.violation.property == "junctions_are_checkpointed") == fails


def test_every_report_of_such_a_failure_names_it(tmp_path: Path) -> None:
    class Files:
        def write_file(self, name: str, data: bytes) -> Path:
            return tmp_path / name[:0] / str(len(data))

    found = broken("equal_blocks_are_shared")
    assert found is not None
    suite = cache_suite(InProcessHandle("reference", make_target), "full")
    failure: Failure = stored_failure(Files(), "reference", suite, found, None)
    run = with_events(recorded_run(), [failure])
    for text in (render_html(run), render_markdown(run), terminal_text(run)):
        plain = text.replace("&#39;", "'")
        assert "f intended, declare" in plain
        assert "PolicyProfile(duplicates='kept')" in plain
