"""What an adapter finds in a release that it was not written for, as data."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvproof.harness.adapters.drift import (
    call_drift,
    drift_of_calls,
    found_drift,
    refuse,
    signature_drift,
)
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.releases import nearest


class Manager:
    def free(self, request, force=None):
        """As a later release has it."""

    def evict(self, blocks, reason):
        """With a new parameter that has no default."""

    def reset(self, *rest):
        """Takes anything."""


NAMES = SimpleNamespace(Manager=Manager)
FREE = "self request force"


def only(found):
    (one,) = found
    return one


def test_a_known_release_has_exactly_the_parameters_of_the_table():
    assert not list(signature_drift(NAMES, {"Manager.free": FREE}, {}))
    found = only(signature_drift(NAMES, {"Manager.free": "self request"}, {}))
    assert found == Difference("call", "Manager.free", "self request", FREE, blocks=True)
    assert found.changes == "new: force"


@pytest.mark.parametrize(
    ("expected", "call", "blocks"),
    [
        ("self request", None, False),  # what is new has a default
        ("self request now", None, True),  # the adapter passes what is gone
        ("self request now", "self request", False),  # it does not pass it
        ("self number", None, True),  # by position, and it has another name
        ("self request", "self request force=", False),
        ("self request", "self request now=", True),
        ("self request", "self request now?", False),
    ],
)
def test_another_release_is_judged_by_the_adapter_s_call(expected, call, blocks):
    calls = {"Manager.free": call} if call else {}
    found = only(call_drift(NAMES, {"Manager.free": [expected]}, calls))
    assert found.blocks is blocks
    assert (found.advice.startswith("none")) is not blocks


def test_a_new_parameter_without_a_default_is_in_the_way():
    assert only(call_drift(NAMES, {"Manager.evict": ["self blocks"]}, {})).blocks
    passed = {"Manager.evict": "self blocks reason?"}
    assert not only(call_drift(NAMES, {"Manager.evict": ["self blocks"]}, passed)).blocks
    assert not only(call_drift(NAMES, {"Manager.reset": ["self"]}, {})).blocks


def test_a_call_as_in_any_known_release_is_no_difference():
    forms = {"Manager.free": ["self request", FREE], "Manager.take": ["self", None]}
    assert not list(call_drift(NAMES, forms, {}))
    gone = only(call_drift(NAMES, {"Manager.take": ["self"]}, {}))
    assert (str(gone), gone.blocks) == ("Manager has no attribute take", True)


def test_parameters_that_the_adapter_passes_are_needed_in_every_release():
    for known in (True, False):
        found = drift_of_calls(
            NAMES, known=known, signatures={}, accepted={"Manager.free": "request later"}
        )
        assert str(only(found)) == "Manager.free does not accept later"


def test_what_cannot_be_imported_is_named():
    def module():
        from kvproof.harness import no_such_module  # noqa: F401

    def package():
        import no_such_package_of_this_test  # noqa: F401

    def name():
        return SimpleNamespace.gone

    found = [only(found_drift("2", ("1",), load, tuple)) for load in (module, package, name)]
    assert [each.kind for each in found] == ["import", "package", "import"]
    assert found[0].expected == "no_such_module"
    assert found[1].name == "no_such_package_of_this_test"
    assert "has no attribute 'gone'" in found[2].found


def test_an_exception_of_an_unknown_release_is_a_difference_and_of_a_known_one_a_bug():
    def fail(_):
        raise TypeError("no such argument")

    found = only(found_drift("2", ("1",), object, fail))
    assert found.found == "TypeError: no such argument"
    with pytest.raises(TypeError):
        found_drift("1", ("1",), object, fail)


def test_only_what_is_in_the_way_refuses():
    tolerated = Difference("call", "a", "self", "self b", blocks=False)
    refuse("toy", [tolerated])
    with pytest.raises(RuntimeError, match=r"a\(self b\), expected \(self\)$"):
        refuse("toy", [tolerated, Difference("call", "a", "self", "self b")])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.32.0", "0.33.0"),
        ("0.24.0", "0.23.0"),
        ("0.28.0", "0.33.0"),  # of two, the later one
        ("0.33.1.dev12", "0.33.0"),
        ("0.5.15.post1", "0.23.0"),
        ("1.0", "0.33.0"),
    ],
)
def test_the_nearest_release(version, expected):
    assert nearest(version, ("0.23.0", "0.33.0")) == expected
