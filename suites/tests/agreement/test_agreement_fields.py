"""The property that a field of the contract names finds it wrong, in an answer or unheard."""

from __future__ import annotations

import pytest

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import counterexample
from kvproof.suites.tests.agreement.lies import subject
from kvproof.suites.tests.agreement.lies_fields import ANSWERS, CALLS, Deaf
from kvproof.suites.tests.project.test_read_fields import NO_PROPERTY, ROWS

READ = {name: prop for name, prop in ROWS["blocks"].items() if prop not in NO_PROPERTY}


def test_each_field_that_a_property_reads_is_shown() -> None:
    assert READ.keys() == ANSWERS.keys() | CALLS.keys()


@pytest.mark.parametrize("name", READ)
def test_the_property_finds_the_field_wrong(name: str) -> None:
    wrong = CALLS.get(name) or ANSWERS[name]

    def make(config: TargetConfig) -> Target:
        return wrong.target(config) if isinstance(wrong, Deaf) else subject(wrong, config)

    suite = conformance(InProcessHandle("reference", make))
    calls = [(ops.name(each), ops.compact(each)) for each in wrong.history]
    found = counterexample(suite, ops.compact(wrong.config), calls)
    assert found is not None
    assert found.violation.property == READ[name], found.violation
