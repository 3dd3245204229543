"""An engine with one token a block can pass: only its own sizes are asked of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.records.events import AnyEvent, Replayed, Skipped
from kvproof.suites.conformance.properties import BY_NAME, on
from kvproof.suites.runner.runner import SuiteRun


def tokens(config: TargetConfig) -> Target:
    """Make a reference that claims blocks of one token."""
    assert config.block_size == 1, "it has no other"
    target = make_target(config)
    target.profile = replace(target.profile, block_sizes=(1,))
    return target


def test_no_partial_block_is_asked_for() -> None:
    prop = BY_NAME["table_never_shifts"]
    one = tokens(TargetConfig(num_blocks=4, block_size=1)).profile
    assert "a partial last block is extended" in prop.situations
    assert on(prop, one).situations == ("an extension crosses a block border",)


class Nowhere:
    """Takes no file: no failure is expected."""

    def write_file(self, name: str, data: bytes) -> Path:
        raise AssertionError(name, data)


def test_logs_of_other_block_sizes_are_not_replayed() -> None:
    """They failed on such an engine."""
    events: list[AnyEvent] = []
    with InProcessHandle("reference", tokens) as handle:
        run = SuiteRun(handle, Nowhere(), write=events.append, level="core")
        run.replay_corpus()
    (only,) = [event for event in events if isinstance(event, Replayed)]
    assert (Path(only.path).stem, only.outcome) == ("split_node_gives_back_whole_table", "PASS")
    (skipped,) = [event for event in events if isinstance(event, Skipped)]
    assert skipped.part == "3 logs of the corpus on reference"
    assert skipped.reason == "their blocks have 2 tokens, those of the profile 1"
