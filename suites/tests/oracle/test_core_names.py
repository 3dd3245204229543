"""Names that must agree: properties, situations, oracles, and who raises them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from kvproof import harness
from kvproof.harness.contract.profile import Profile
from kvproof.harness.errors import ANSWERS
from kvproof.harness.oracle import violation
from kvproof.harness.oracle.coverage_groups import LIMITS
from kvproof.harness.records.events import Verdict
from kvproof.suites.conformance import properties
from kvproof.suites.conformance.properties import BY_NAME, PROPERTIES, supported, why_unsupported

HARNESS = Path(harness.__file__).parent
ORACLES = {violation.SHADOW, violation.INVARIANT, violation.BRUTE_FORCE, violation.METAMORPHIC}


def strings(*modules):
    """Every string of these modules, docstrings aside."""
    for module in modules:
        tree = ast.parse((HARNESS / f"{module}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = None
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


JUDGES = (
    *(f"oracle/checks/{path.stem}" for path in sorted(HARNESS.glob("oracle/checks/[a-z]*.py"))),
    *("oracle/violation", "bench/checked_job"),
)


def judged():
    """Every name that a check or a violation reports, wherever it stands in the code."""
    sentence = re.compile(r"[a-z]+(_[a-z]+){2,}")
    fields_of_code = {"eviction_order", "in_flight_steps", "evict_keeps_place"}
    fields_of_code |= {"lru_tail_first", "lru_in_all_groups", "lru_by_use"}
    return {text for text in strings(*JUDGES) if sentence.fullmatch(text)} - fields_of_code


def test_every_property_is_judged_and_everything_judged_is_a_property():
    dying = {ANSWERS}  # judged wherever a target is called: it is what TargetFailure means
    assert judged() | dying == set(BY_NAME)


def constants(tree):
    """Return the strings that a module gives a name to: `_READS = "..."` -> its value."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and is_text(node.value)
    }


def failed(tree, known):
    """Return (line, property) of each call of `fail` that names its property as a constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fail":
            prop = node.args[1]
            value = prop.value if is_text(prop) else known.get(getattr(prop, "id", ""))
            yield node.lineno, value


def counted(tree, known):
    """Return the properties that a module counts: `counts[_READS] += 1`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            key = node.target.slice
            yield key.value if is_text(key) else known.get(getattr(key, "id", ""))


def test_every_check_that_can_fail_is_counted_where_it_is_made():
    calls = 0
    for module in JUDGES:
        tree = ast.parse((HARNESS / f"{module}.py").read_text())
        known = constants(tree)
        counts = set(counted(tree, known))
        for line, prop in failed(tree, known):
            calls += 1
            assert prop is None or prop in BY_NAME, (module, line, prop)
            assert prop is None or prop in counts, (module, line, prop)
    assert calls > 25


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def sources():
    """The modules that count situations, as one."""
    files = ("coverage.py", "coverage_groups.py", "checks/host_tier.py")
    texts = [(HARNESS / "oracle" / name).read_text().partition("class ")[2] for name in files]
    return "\n".join(f"class {text}" for text in texts)


def named_situations(tree):
    """Yield the first argument of each `_saw`, and the key of each `seen[...] += 1`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "_saw":
            yield node.args[0]
        target = node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") == "seen":
            yield target.slice


def situations():
    """Return the situations that are counted; an f-string counts all that begin like it."""
    names = list(named_situations(ast.parse(sources())))
    whole = {name.value for name in names if is_text(name)} | set(LIMITS.values())
    return whole, {name.values[0].value for name in names if isinstance(name, ast.JoinedStr)}


def test_every_situation_that_a_property_needs_is_counted():
    whole, beginnings = situations()
    needed = {name for prop in PROPERTIES for name in prop.situations}
    reasons = {"no_space", "never_fits", "busy", "invalid"}
    refusals = {f"{start}{reason}" for start in beginnings for reason in reasons}
    assert beginnings == {"a refusal: "}
    assert needed <= whole | refusals, needed - whole - refusals
    assert len(needed) > 15


def test_no_situation_is_counted_twice_under_one_name():
    text = sources()
    for name in situations()[0] - set(LIMITS.values()):
        assert text.count(f'"{name}"') == 1, name


def test_names_are_unique_and_rules_and_oracles_are_known():
    assert len(BY_NAME) == len(PROPERTIES)
    for prop in PROPERTIES:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", prop.name)
        assert all(re.fullmatch(r"[A-Z]\d+", rule) for rule in prop.rules), prop.name
        assert prop.section == prop.rules[0][0]
        assert prop.oracle in ORACLES
        assert prop.sentence[0].islower()
        assert not prop.sentence.endswith(".")


NEEDS = sorted({prop.needs for prop in PROPERTIES} - {""})
BARE = Profile(
    engine="e",
    version="1",
    block_sizes=(16,),
    adapters=False,
    salts=False,
    evict=False,
    duplicates="kept",
    eviction_order="undeclared",
    index="flat",
    maximal=False,
)
FULL = Profile(
    engine="e",
    version="1",
    block_sizes=(16,),
    **{
        name: True
        for name, value in BARE.flat().items()
        if isinstance(value, bool) and name != "evict_keeps_place"
    },
    in_flight_steps=1,
    groups=("full", "window", "chunk", "state"),
    state_pools=("shared", "separate"),
    host_policies=("write_back",),
    eviction_order="lru_in_all_groups",
    prompt_saves="borders",
    compression=(2,),
)


@pytest.mark.parametrize("needs", NEEDS)
def test_what_a_property_needs_is_something_a_profile_can_lack(needs):
    prop = next(prop for prop in PROPERTIES if prop.needs == needs)
    assert not supported(prop, BARE)
    assert supported(prop, FULL)
    assert needs in {*BARE.flat()} | set(properties._DECLARED)


def test_properties_without_needs_hold_for_every_target():
    assert all(supported(prop, BARE) for prop in PROPERTIES if not prop.needs)
    assert sum(not prop.needs for prop in PROPERTIES) > 10


def test_the_reason_for_what_is_unsupported_is_the_profiles_own():
    prop = BY_NAME["pins_hold_the_cached_prefix"]
    reported = Profile(engine="e", version="1", block_sizes=(1,), unsupported={"pins": "no API"})
    assert why_unsupported(prop, reported) == "no API"
    assert "'pins'" in why_unsupported(prop, BARE)


def test_every_capability_that_is_off_can_be_explained():
    declared = {*BARE.flat()} | set(properties._DECLARED)
    assert set(NEEDS) <= declared


def test_verdicts_are_those_of_the_records():
    assert set(get_args(Verdict)) == {
        "pass", "inconclusive", "fail", "unsupported", "expected_failure"
    }  # fmt: skip
