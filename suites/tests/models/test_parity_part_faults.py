"""Each property of the suite `parity` sees the fault that it is there for."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything
from kvproof.suites.tests.models import model_kit  # noqa: F401 - skips without torch

from kvproof.suites.reference.parity.strategies import SUITE, missing  # isort: skip

pytestmark = pytest.mark.slow(reason="computes with torch models")

_TOLD = """\
        if recorded is None or row.done >= len(recorded):
            return nullcontext()
        return replayed(self._model, recorded[row.done : row.cuts[0]][None])
"""
FAULTS = (
    *catalogued("parity"),
    Planted(
        "every layer gets the experts of the first",
        "forced_experts_are_used",
        "model_runner.experts",
        "_forced(block, rows[:, :, layer])",
        "_forced(block, rows[:, :, 0])",
    ),
    Planted(
        "the last row is sent for ever",
        "a_replay_ends_with_its_rows",
        "model_runner.runner",
        _TOLD,
        """\
        if recorded is None:
            return nullcontext()
        places = torch.arange(row.done, row.cuts[0]).clamp(max=len(recorded) - 1)
        return replayed(self._model, recorded[places][None])
""",
    ),
    Planted(
        "the rows of one request are sent to all",
        "a_replay_is_of_one_request_only",
        "model_runner.runner",
        "        recorded = self.replays.get(row.work.request_id)\n" + _TOLD,
        """\
        recorded = next(iter(self.replays.values()), None)
        if recorded is None or row.done >= len(recorded) or row.cuts[0] > len(recorded):
            return nullcontext()
        return replayed(self._model, recorded[row.done : row.cuts[0]][None])
""",
    ),
)


def test_the_part_passes_and_sees_everything():
    assert missing() == ""
    sees_everything(SUITE)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.property)
def test_a_planted_fault_is_seen_by_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
