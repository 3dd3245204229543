"""A report names every property that the last operation of a history breaks."""

from __future__ import annotations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Namespace, Request, TargetConfig
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import counterexample
from kvproof.suites.framework.evidence import related
from kvproof.suites.tests.framework import faults

PROMPT = Request("a", (1, 2, 3, 4))


CONFIG = TargetConfig(num_blocks=9, block_size=2, kernel_block_size=1)


def broken(fault, *operations):
    """Run a history on the reference with a fault."""
    handle = InProcessHandle("reference", getattr(faults, fault))
    calls = [(ops.name(each), ops.compact(each)) for each in operations]
    return counterexample(conformance(handle), ops.compact(CONFIG), calls)


def test_a_lost_namespace_is_named_beside_the_length_of_the_hit():
    salted = Request("b", PROMPT.tokens, namespace=Namespace(salt="x"))
    found = broken(
        "namespace_ignored", ops.Admit(PROMPT), ops.Complete(), ops.Finish("a"), ops.Admit(salted)
    )
    assert found is not None
    assert found.violation.property == "namespaces_are_separate"
    assert related(found) == ["hits_come_from_the_cache (brute force) fails by the same operation"]


def test_a_failure_of_one_property_names_no_other():
    found = broken(
        "padding_expanded",
        *(ops.Admit(PROMPT), ops.Complete(), ops.Admit(Request("b", (7,)))),
        ops.ReadBatch(("a", "b")),
    )
    assert found is not None
    assert found.violation.property == "padding_is_the_null_block"
    assert related(found) == []
