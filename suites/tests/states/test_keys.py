"""The suite `keys`: right keys pass, and each planted mistake falls to its own property."""

from __future__ import annotations

from functools import partial

import pytest

from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import run
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.object_keys.machine import ObjectKeysMachine
from kvproof.suites.reference.object_keys.strategies import SUITE
from kvproof.suites.tests.framework import planted
from kvproof.suites.tests.framework.planted import Fault
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK, fallen, sees_everything


@pytest.mark.slow(reason="explores until every situation occurs")
def test_all_situations_occur_and_every_property_holds():
    sees_everything(SUITE, BUDGETS["pr"])


FAULTS = {
    "joined": (
        "keys_are_equal_iff_their_content_is",
        Fault(
            "reference.core.identity",
            "encode(*self._prefix, *namespace)",
            "encode(*self._prefix, ''.join(n or '' for n in namespace))",
        ),
    ),
    "truncated": (
        "keys_are_equal_iff_their_content_is",
        Fault(
            "reference.core.identity",
            "fields = (field for span in spans for field in span)",
            "fields = (str(field)[-4:] for span in spans for field in span)",
        ),
    ),
    "placeless": (
        "keys_are_equal_iff_their_content_is",
        Fault(
            "reference.core.identity",
            "fields = (field for span in spans for field in span)",
            "fields = (span.content for span in spans)",
        ),
    ),
    "groupless": (
        "keys_are_equal_iff_their_content_is",
        Fault(
            "reference.core.identity",
            "self._digest, self._prefix = digest, prefix",
            "self._digest, self._prefix = digest, (prefix[0], *prefix[2:])",
        ),
    ),
    "kept_after_a_cut": (
        "edited_keys_are_those_from_scratch",
        Fault(
            "reference.core.identity",
            "del self.keys[num_tokens // self._block_size :]",
            "del self.keys[-(-num_tokens // self._block_size) :]",
        ),
    ),
    "seeded": (
        "keys_repeat_in_every_process",
        Fault(
            "reference.core.identity",
            "encode(*self._prefix, *namespace)",
            "encode(str(hash('kvproof')), *self._prefix[1:], *namespace)",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_falls_to_its_property(name):
    prop, fault = FAULTS[name]
    planted.plant(f"keys_{name}", fault)
    subject = planted.load(f"keys_{name}", "reference.core.identity")
    part = SUITE._replace(machine=partial(ObjectKeysMachine, subject=subject))
    others = {each.name for each in SUITE.properties} - {prop}
    seen = fallen(lambda seed: explore(part, UNSHRUNK, seed=seed, tolerate=others))
    assert isinstance(seen.violation, Violation)
    assert seen.violation.property == prop
    history = seen.counterexample.history
    operations = [(each.verb, each.arguments) for each in history.operations]
    run(SUITE, history.config, operations)


def test_verbs_without_a_request_are_ignored():
    history = run(SUITE, {"algorithm": "sha256", "block_size": 2}, [("ask", {"of": 3})])
    assert history.operations[0].answer == ""
