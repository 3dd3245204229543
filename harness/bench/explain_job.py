"""Explanations of the reference's hits, through the contract (V3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.adapters.reference.target import ReferenceTarget
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import Explained
from kvproof.harness.reproduce import oplog, session_play
from kvproof.harness.session import Session
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.observe.explainer import Explainer
from kvproof.reference.observe.explanation import Explanation


class ExplainedTarget(NamedTuple):
    """The reference target, with a function that explains its hits."""

    target: ReferenceTarget
    explainer: Explainer

    def events(self) -> list[dict[str, Any]]:
        """Return every explanation so far, as the fields of `Explained` about the request."""
        return [_plain(each) for each in self.explainer.explanations]


class Story(NamedTuple):
    """Explanations of the requests of a record."""

    explained: list[Explained]
    stopped: str = ""
    """Why it ended early, for example the violation; empty if it came to its end."""


def explained_target(config: TargetConfig) -> ExplainedTarget:
    """Make a reference whose every hit is explained."""
    made: list[Explainer] = []

    def manager(native: CacheConfig) -> CacheManager:
        cache = CacheManager(native)
        made.append(Explainer(cache))
        return cache

    target = ReferenceTarget(config, manager)
    return ExplainedTarget(target, made[0])


def explain_log(path: Path) -> Story:
    """Replay an op log of any target on the reference. Raises UsageError for any other file."""
    log = oplog.load(path)
    config = oplog.target_config(log)
    explained = explained_target(config)
    stopped = ""
    try:
        session = Session(explained.target, config)
        operations = session_play.decode(log.operations)
        session_play.play(session, session_play.making_room(session, operations))
    except Violation as violation:
        stopped = str(violation)
    where = config.block_size, config.num_blocks
    events = [_event(path.name, *where, each) for each in explained.events()]
    return Story(events, stopped)


def _event(workload: str, block_size: int, num_blocks: int, fields: dict[str, Any]) -> Explained:
    return Explained(
        target="reference",
        workload=workload,
        block_size=block_size,
        num_blocks=num_blocks,
        **fields,
    )


def _plain(explanation: Explanation) -> dict[str, Any]:
    return {
        "request": explanation.request,
        "prompt": explanation.prompt,
        "hit": explanation.hit,
        "optimum": explanation.optimum,
        "lost": dict(explanation.lost),
        "sentence": explanation.sentence(),
    }
