"""The toy engine as what a target provides: the suite `engine` over it, in this process."""

from __future__ import annotations

from typing import Any

from kvproof.harness.whole_engine.job import Job
from kvproof.suites.framework.component_suite import ComponentSuite, TargetProvided
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS, driver
from kvproof.suites.whole_engine import strategies


def toy_suite(fault: str = "") -> ComponentSuite:
    return toy_provided(fault).suite


def toy_provided(fault: str = "") -> TargetProvided:
    job = Job(lambda config: driver(config, fault), lambda: TRAITS)

    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        return [job.call(verb, keywords) for verb, keywords in calls]

    return strategies.provided(ask)


def answering(prop: str, *, wrong: bool) -> ComponentSuite:
    """The toy, whose process answers that it has checked a property of abilities it has not."""
    job = Job(driver, lambda: TRAITS)

    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        return [answer(verb, job.call(verb, keywords)) for verb, keywords in calls]

    def answer(verb: str, own: Any) -> Any:
        if verb != "apply" or not own["checks"]:
            return own
        violation = [prop, "it does not hold", {"launch": 1}] if wrong else None
        return own | {"checks": own["checks"] | {prop: 1}, "wrong": violation}

    return strategies.provided(ask).suite
