"""Every property of the suite `cache` finds a lie, and its script and its replay agree with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.conformance.group_properties import FULL
from kvproof.suites.conformance.properties import CORE
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.component_suite import counterexample
from kvproof.suites.tests.agreement import lies_core, lies_full
from kvproof.suites.tests.agreement.agreement_kit import agree
from kvproof.suites.tests.agreement.lies import subject

LIES = {**lies_core.LIES, **lies_full.LIES}


@contextmanager
def world(factory: Callable[[TargetConfig], Target]) -> Iterator[InProcessHandle]:
    """Let scripts open this target."""
    with InProcessHandle("reference", factory) as handle, pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvproof.harness.api.open_target", lambda _, config: handle.create(config))
        yield handle


def test_every_property_has_a_lie() -> None:
    assert set(lies_core.LIES) == {prop.name for prop in CORE}
    assert set(lies_full.LIES) == {prop.name for prop in FULL}


@pytest.mark.parametrize("prop", LIES)
def test_verdict_script_and_replay_agree(prop: str, tmp_path: Path) -> None:
    lie = LIES[prop]

    def wrong(config: TargetConfig) -> Target:
        return subject(lie, config)

    suite = conformance(InProcessHandle("reference", wrong))
    calls = [(ops.name(each), ops.compact(each)) for each in lie.history]
    found = counterexample(suite, ops.compact(lie.config), calls)
    assert found is not None
    assert found.violation.property == prop, found.violation
    agree(found, tmp_path, wrong=partial(world, wrong), mended=partial(world, make_target))
