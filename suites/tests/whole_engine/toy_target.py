"""Targets whose own loop is the toy engine: one ignores salts, the other has no fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.whole_engine.job import Job
from kvproof.suites.tests.whole_engine.toy_engine import TRAITS, driver


@cache
def _job() -> Job:
    return Job(lambda config: driver(config, "salt_ignored"), lambda: TRAITS)


def engine(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"answers": [_job().call(verb, keywords) for verb, keywords in arguments["calls"]]}


@cache
def _sound() -> Job:
    return Job(driver, lambda: TRAITS)


def sound(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"answers": [_sound().call(verb, keywords) for verb, keywords in arguments["calls"]]}


def make_target(_: TargetConfig) -> WithoutBlocks:
    return _target(engine)


def make_sound_target(_: TargetConfig) -> WithoutBlocks:
    return _target(sound)


def _target(job: Callable[[dict[str, Any]], dict[str, Any]]) -> WithoutBlocks:
    return WithoutBlocks(
        Profile(
            engine="toy-loop",
            version="1",
            block_sizes=TRAITS.block_sizes,
            blocks=False,
            component_suites={"engine": f"{__name__}:{job.__name__}"},
            unsupported={"blocks": "its loop decides"},
        )
    )
