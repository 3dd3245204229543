"""Figures, ratios, neighbours and verdicts of a sweep, from its events alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records import sweep_results as results
from kvproof.harness.records.events import exit_code
from kvproof.harness.records.sweep_events import (
    Ceiling,
    Ceilings,
    Cell,
    CellCost,
    Slower,
    SweepDevice,
    SweepKernel,
    SweepProvider,
    SweepStarted,
)
from kvproof.harness.sweep.cell_filter import check_axes, matches, parse_where
from kvproof.harness.sweep.device_worker import DeviceSlot
from kvproof.harness.sweep.failure import failure_of
from kvproof.harness.sweep.verdict import BAD, Planned, conclude, slower, undecided
from kvproof.reports.charts.sweep import heat_maps
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.values.svg import Label

KERNEL = SweepKernel(
    name="decode",
    sentence="reads",
    ceiling="read",
    axes={"page": [16, 32, 64, 128], "head_dim": [64, 128]},
    cells=8,
)
OURS = SweepProvider(name="ours", version="1", peer=False, kernels=["decode"])
PEER = SweepProvider(name="peer", version="2", peer=True, kernels=["decode"])


def cell(page: int = 16, *, seconds: float = 1e-3, provider: str = "ours", **changes: Any) -> Cell:
    given: dict[str, Any] = {
        "kernel": "decode",
        "provider": provider,
        "peer": provider == "peer",
        "case": {"page": page, "head_dim": 128},
        "outcome": "ok",
        "cost": CellCost(read=10**9, flops=10**10),
        "samples": [seconds * factor for factor in (1.0, 0.99, 1.01, 1.0, 1.0)],
        **changes,
    }
    return Cell(**given)


def begun(kernel: SweepKernel = KERNEL) -> list[Any]:
    start = SweepStarted(
        device="cuda",
        devices=[SweepDevice(index=0, name="a card")],
        versions={},
        kernels=[kernel],
        providers=[OURS, PEER],
        cells=["gpu"],
        seeds=[0],
        timing=True,
    )
    limits = {
        "read": Ceiling(value=2e12, unit="B/s"),
        "matmul": Ceiling(value=1e14, unit="FLOP/s"),
        "launch": Ceiling(value=1e-6, unit="s"),
    }
    return [start, Ceilings(device=0, values=limits)]


def test_the_last_event_of_a_cell_holds() -> None:
    checked = cell(samples=[])
    turned = cell(case={"head_dim": 128, "page": 16})
    (found,) = results.latest([checked, turned]).values()
    assert found is turned


@pytest.mark.parametrize(
    ("ceiling", "rate", "unit", "fraction"),
    [
        ("read", 1e12, "B/s", 0.5),
        ("matmul", 1e13, "FLOP/s", 0.1),
        ("launch", 1e3, "1/s", 1e-3),
        ("copy", 1e12, "B/s", None),
    ],
)
def test_a_rate_is_held_against_the_kernels_ceiling(
    ceiling: str, rate: float, unit: str, fraction: float | None
) -> None:
    kernel = SweepKernel(name="decode", sentence="", ceiling=ceiling, axes={}, cells=1)
    (row,) = results.rows([*begun(kernel), cell(), cell(32, outcome="wrong", reason="far off")])
    assert row.seconds == pytest.approx(1e-3)
    assert row.low < row.seconds < row.high
    assert row.rate == pytest.approx(rate)
    assert row.unit == unit
    assert row.fraction == (None if fraction is None else pytest.approx(fraction))


def test_a_copy_counts_both_ways_and_a_link_one() -> None:
    both = cell(cost=CellCost(read=10**9, write=10**9))
    limits = {"copy": Ceiling(value=4e12, unit="B/s"), "link": Ceiling(value=4e12, unit="B/s")}
    assert results.row_of(both, "copy", limits).fraction == pytest.approx(0.5)
    assert results.row_of(both, "link", limits).fraction == pytest.approx(0.25)


def test_speedups_compare_the_providers_of_one_case() -> None:
    rows = results.rows([*begun(), cell(), cell(32), cell(provider="peer", seconds=2e-3)])
    (place,) = (key for key, sides in results.speedups(rows, "ours").items() if sides)
    assert place == ("decode", results.case_key({"page": 16, "head_dim": 128}))
    assert results.speedups(rows, "ours")[place]["peer"].middle == pytest.approx(2.0)
    assert results.speedups(rows, "peer")[place]["ours"].middle == pytest.approx(0.5)


def test_neighbours_are_one_step_apart_along_one_axis_worst_first() -> None:
    cells = [cell(16), cell(32, seconds=2e-3), cell(128, seconds=2e-3), cell(64, provider="peer")]
    pairs = results.neighbours(results.rows([*begun(), *cells]), [KERNEL])
    reported = [
        (p.axis, p.slow.cell.case["page"], p.fast.cell.case["page"], p.ratio) for p in pairs
    ]
    assert reported == [("page", 32, 16, pytest.approx(2.0))]  # 64 lies between 32 and 128


def test_slower_means_by_more_than_is_tolerated_and_than_the_spread() -> None:
    before = results.latest([cell(16), cell(32), cell(64), cell(128, provider="peer")])
    noisy = cell(64, samples=[1e-3, 0.5e-3, 3e-3, 0.9e-3, 1.3e-3])
    now = results.latest(
        [cell(16, seconds=1.3e-3), cell(32, seconds=1.05e-3), noisy,
         cell(128, seconds=9e-3, provider="peer"), cell(256, seconds=1.0)]
    )  # fmt: skip
    (found,) = slower(now, before, tolerated=0.1)
    assert (found.case["page"], found.ratio) == (16, pytest.approx(1.3))
    assert found.low > 1.1
    assert exit_code(found) == Exit.REGRESSION
    assert isinstance(found, Slower)
    (reported,) = undecided(now, before, tolerated=0.1)
    assert reported.startswith("decode ours page=64 head_dim=128: the interval")


def test_another_clock_explains_any_loss() -> None:
    before = results.latest([cell(16, clocks={"sm_mhz": 1980.0})])
    now = results.latest([cell(16, seconds=2e-3, clocks={"sm_mhz": 990.0})])
    assert slower(now, before, tolerated=0.1) == []
    (reported,) = undecided(now, before, tolerated=0.1)
    assert reported.endswith("the GPU ran at 1980 MHz, then at 990 MHz")


PLANNED = [Planned("decode", name, {"page": 16, "head_dim": 128}) for name in ("ours", "peer")]


def concluded(*cells: Cell, timed: bool = False) -> Any:
    return conclude(PLANNED, results.latest(cells), [OURS, PEER], timed=timed)


def test_all_there_and_right_is_a_pass() -> None:
    found = concluded(cell(), cell(provider="peer"), timed=True)
    assert (found.verdict, found.reason, found.missing) == ("pass", "", [])
    assert found.outcomes == {"ours": {"ok": 1}, "peer": {"ok": 1}}
    assert exit_code(found) == Exit.PASS


def test_a_missing_cell_is_inconclusive_also_one_of_a_peer() -> None:
    found = concluded(cell())
    assert (found.verdict, exit_code(found)) == ("inconclusive", Exit.INCONCLUSIVE)
    assert found.missing == ["decode peer page=16 head_dim=128"]
    assert found.reason == (
        "1 of 2 cells did not run (decode 1), such as decode peer page=16 head_dim=128"
    )


def test_a_right_cell_that_was_to_be_timed_is_missing_without_samples() -> None:
    cells = (cell(samples=[]), cell(provider="peer", outcome="unsupported"))
    assert concluded(*cells).verdict == "pass"
    found = concluded(*cells, timed=True)
    assert found.missing == ["decode ours page=16 head_dim=128"]
    assert found.reason.startswith("1 of 2 cells were not timed (decode 1), such as decode ours")


def test_rows_of_a_heat_map_begin_with_what_the_row_above_has_not() -> None:
    """Labels are cut at their end: before, three rows read "head_dim 64, heads 8, ..."."""
    axes = {"head_dim": [64, 128, 256], "heads": [8, 16, 24], "batch": [1, 4, 9],
            "page": [16, 32, 64, 128]}  # fmt: skip
    kernel = replace(KERNEL, axes=axes)
    sizes = product(*axes.values())
    cells = [cell(case=dict(zip(axes, values, strict=True))) for values in sizes]
    swept = sweep_of([*begun(kernel), *cells])
    assert swept is not None
    (chart,) = heat_maps(swept, swept.kernels[0])
    texts = [shape.text for shape in chart.drawing.shapes if isinstance(shape, Label)]
    rows = [text.split(",")[0] for text in texts if text.count(", ") == 2]
    assert rows[1:6] == ["batch 4", "batch 9", "heads 16", "batch 4", "batch 9"]
    assert rows[9] == "head_dim 128"


@pytest.mark.parametrize("outcome", BAD)
def test_a_judged_cell_that_is_not_right_fails_the_sweep_and_a_peers_does_not(outcome: Any) -> None:
    wrong = concluded(cell(outcome=outcome, reason="why"), cell(provider="peer"))
    assert (wrong.verdict, exit_code(wrong)) == ("fail", Exit.FAILURE)
    assert outcome.replace("_", " ") in wrong.reason
    assert wrong.reason.endswith("why")
    peers = concluded(cell(), cell(provider="peer", outcome=outcome))
    assert peers.verdict == "pass"
    assert peers.outcomes["peer"] == {outcome: 1}


def test_nothing_planned_is_no_pass() -> None:
    assert conclude([], {}, [], timed=False).verdict == "inconclusive"


def test_conditions_choose_cells_by_the_text_of_their_values() -> None:
    where = parse_where("page=16,32 causal=true page=64")
    assert where == {"page": ["16", "32", "64"], "causal": ["true"]}
    assert matches({"page": 64, "causal": True}, where)
    assert not matches({"page": 64, "causal": False}, where)
    assert not matches({"page": 128, "causal": True}, where)
    assert not matches({"causal": True}, where)
    assert matches({"anything": 1}, parse_where(""))


@pytest.mark.parametrize("text", ["page", "page=", "=16", "page=,"])
def test_a_condition_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="is not AXIS=VALUE"):
        parse_where(text)


def test_an_axis_that_no_cell_has_is_named_with_the_closest() -> None:
    with pytest.raises(UsageError, match="'pge' is not an axis") as raised:
        check_axes({"pge": ["16"]}, {"page": [16], "head_dim": [64]})
    assert raised.value.hint == "did you mean 'page'?"


def test_a_value_that_no_cell_has_is_named_with_the_legal_ones() -> None:
    with pytest.raises(UsageError, match="kv_dtype = 'bf17' is the value of no cell") as raised:
        check_axes({"kv_dtype": ["bf16", "bf17"]}, {"kv_dtype": ["bf16", "fp8"]})
    assert raised.value.hint == "legal: bf16, fp8"


class OutOfResources(Exception):
    """As Triton's: what is recognised is the name, so that Triton need not be imported."""

    def __init__(self, required: int, limit: int, name: str) -> None:
        super().__init__("out of resource")
        self.required, self.limit, self.name = required, limit, name


@pytest.mark.parametrize(
    ("error", "numbers"),
    [
        (OutOfResources(300, 200, "shared memory"), (300, 200)),
        (RuntimeError("out of resource: shared memory, Required: 274432, Hardware limit: 232448. "
                      "Reducing block sizes or `num_stages` may help."), (274432, 232448)),
        (RuntimeError("ptxas error   : Entry function 'f' uses too much shared data "
                      "(0x43000 bytes, 0x38c00 max)"), (274432, 232448)),
        (RuntimeError("CUDA error: too many resources requested for launch"), (None, None)),
        (RuntimeError("[CUDA]: out of resource"), (None, None)),
    ],
)  # fmt: skip
def test_asking_for_too_much_is_told_with_the_numbers(
    error: Exception, numbers: tuple[int | None, int | None]
) -> None:
    found = failure_of(error)
    assert found.outcome == "out_of_resources"
    assert found.resources is not None
    assert (found.resources.required, found.resources.limit) == numbers


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("an illegal memory access was encountered"),
        ValueError("shared memory of 16 bytes is a multiple of 8"),
        KeyError("page"),
    ],
)
def test_every_other_exception_is_a_crash(error: Exception) -> None:
    found = failure_of(error)
    assert (found.outcome, found.resources) == ("crash", None)
    assert found.reason.startswith(type(error).__name__)
    assert type(error).__name__ in found.log


@pytest.mark.parametrize(
    ("visible", "index", "seen"),
    [(None, 0, "0"), (None, 3, "3"), ("4,5,6", 1, "5"), ("GPU-a,GPU-b", 0, "GPU-a"), ("4", 2, "")],
)
def test_a_worker_sees_its_device_only(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int, seen: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert DeviceSlot("cuda", index).environment["CUDA_VISIBLE_DEVICES"] == seen


def test_in_the_interpreter_triton_is_told_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert DeviceSlot("cpu").environment["TRITON_INTERPRET"] == "1"
    assert "TRITON_INTERPRET" not in DeviceSlot("cuda").environment
