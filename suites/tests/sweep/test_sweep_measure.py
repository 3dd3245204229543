"""What is done around the clock, with a clock that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")

from kvproof.harness.sweep import timing as sweep_measure
from kvproof.harness.sweep.timing import measured
from kvproof.kernels.spec import Arguments, Provider
from kvproof.kernels.timing import Samples
from kvproof.suites.tests.sweep import sweep_toys

CASE = sweep_toys.cases()[2]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Arguments]:
    """The arguments of every launch, in order; four input sets, each launched twice."""
    launched: list[Arguments] = []

    def measure(launches: Sequence[Callable[[], None]]) -> Samples:
        for launch in [*launches, *launches]:
            launch()
        samples = Samples([1e-6, 2e-6, 3e-6])
        samples.clocks = {"sm_mhz": 1980.0}
        return samples

    monkeypatch.setattr(sweep_measure, "measure", measure)
    monkeypatch.setattr(sweep_measure, "_sets", lambda first, touched: 4)
    return launched


def provider(seen: list[Arguments], body: Callable[[Arguments], None]) -> Provider:
    def launch(arguments: Arguments) -> None:
        seen.append(arguments)
        body(arguments)

    return sweep_toys.provider(launch, where=lambda _: True)


def timed(seen: list[Arguments], body: Callable[[Arguments], None]) -> object:
    entry = provider(seen, body).kernels["toy"]
    return measured(sweep_toys.KERNEL, entry, CASE, seed=5, device="cpu")


def test_every_set_has_tensors_and_values_of_its_own(seen: list[Arguments]) -> None:
    cell = timed(seen, sweep_toys.right)
    assert (cell.outcome, cell.samples, cell.sets) == ("ok", [1e-6, 2e-6, 3e-6], 4)
    assert cell.clocks == {"sm_mhz": 1980.0}
    assert cell.cost.read == 4 * CASE["rows"] * CASE["page"]
    assert len(seen) == 8
    pools = [arguments["pool"] for arguments in seen[:4]]
    assert len({pool.data_ptr() for pool in pools}) == 4
    assert len({tuple(pool.view(-1).nan_to_num().tolist()) for pool in pools}) == 4


@pytest.mark.parametrize("bad", [0, 3])
def test_the_first_and_the_last_set_are_compared_when_the_clock_has_stopped(
    seen: list[Arguments], bad: int
) -> None:
    def body(arguments: Arguments) -> None:
        sweep_toys.right(arguments)
        if len(seen) == 5 + bad:
            arguments["out"][0, 0] += 1

    cell = timed(seen, body)
    assert cell.outcome == "wrong"
    assert cell.reason.startswith(f"after timing, set {bad + 1} of 4: out: relative error")
    assert cell.samples == [1e-6, 2e-6, 3e-6]


def test_what_raises_while_it_is_timed_has_its_outcome(seen: list[Arguments]) -> None:
    def body(arguments: Arguments) -> None:
        if len(seen) > 2:
            sweep_toys.out_of_resources(arguments)

    cell = timed(seen, body)
    assert (cell.outcome, cell.samples) == ("out_of_resources", [])
    assert cell.resources.required == 274432
