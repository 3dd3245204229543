"""The job that runs inside the worker counts right and measures what it says."""

from typing import Any

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.bench import checked_job
from kvproof.harness.bench import job as bench_job
from kvproof.harness.bench.belady import Depths, engine_blocks
from kvproof.harness.bench.cases import (
    plan,
)
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.contract.target import Request, TargetConfig
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.tests.bench import bench_kit
from kvproof.suites.tests.bench.bench_kit import REFERENCE, WORKLOAD, factory

toys = bench_kit.toys


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("variant", ["", "lists"])
@pytest.mark.parametrize("spec", [WORKLOAD, "agents:requests=50,tools=100,step=40"])
def test_a_repetition_counts_hits_tokens_and_blocks(spec: str, variant: str) -> None:
    result = bench_job.run(
        {
            "factory": factory("toy"),
            "workload": spec,
            "block_size": 16,
            "num_blocks": 100,
            "variant": variant,
        }
    )
    workload = load_workload(spec)
    references = engine_blocks(workload, 16)
    assert (result["requests"], result["tokens"]) == (workload.requests, workload.tokens)
    assert result["hit_tokens"] / workload.tokens == pytest.approx(
        Depths(references).infinite().tokens
    )
    assert result["cached_blocks"] == references.distinct()[-1]
    assert result["problem"] == ""
    assert 0 < result["p50_us"] <= result["p99_us"]
    assert result["cpu_seconds"] > 0
    assert 0 < result["harness_share"] < 0.3


@pytest.mark.slow(reason="starts processes and waits for them")
@pytest.mark.usefixtures("toys")
def test_only_the_leading_requests_run_when_asked() -> None:
    arguments = {"factory": factory("toy"), "workload": WORKLOAD, "block_size": 16}
    result = bench_job.run({**arguments, "num_blocks": 100, "requests": 7})
    assert (result["requests"], result["tokens"]) == (7, 7 * 256)


@pytest.mark.usefixtures("toys")
def test_batches_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"factory": factory("toy"), "workload": WORKLOAD, "block_size": 16}
    whole = bench_job.run({**arguments, "num_blocks": 100})
    monkeypatch.setattr(bench_job, "BATCH_TOKENS", 600)
    parts = bench_job.run({**arguments, "num_blocks": 100})
    names = ("hit_tokens", "delivered", "freed", "cached_blocks")
    assert [whole[name] for name in names] == [parts[name] for name in names]


@pytest.mark.slow(reason="measures a whole workload")
@pytest.mark.usefixtures("toys")
def test_a_short_workload_is_repeated_with_new_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one cycle for all passes, the second pass would hit everything."""
    made: list[object] = []
    make = worker.load("kvproof_test_toy:make_cycle")

    def make_cycle(*arguments: object) -> object:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr("kvproof_test_toy.make_cycle", make_cycle)
    monkeypatch.setattr(bench_job, "LEAST_CPU_SECONDS", 1e9)
    arguments = {"factory": factory("toy"), "workload": WORKLOAD, "block_size": 16}
    result = bench_job.run({**arguments, "num_blocks": 100})
    assert len(made) == 1 + bench_job.MOST_PASSES
    assert result["hit_tokens"] == (120 - 4) * 192
    assert result["tokens"] == 120 * 256


@pytest.mark.usefixtures("toys")
def test_a_target_that_keeps_block_ids_back_is_a_problem() -> None:
    arguments = {"factory": factory("mute"), "workload": WORKLOAD, "block_size": 16}
    result = bench_job.run({**arguments, "num_blocks": 100})
    assert result["problem"] == "1800 block ids delivered, the prompts need 1920"


@pytest.mark.usefixtures("toys")
def test_memory_is_what_the_manager_keeps_without_the_prompts() -> None:
    """A payload of 1,033 bytes, a key of 32 and an entry of a dictionary per block."""
    arguments = {"factory": factory("toy"), "workload": WORKLOAD, "block_size": 16}
    result = bench_job.memory({**arguments, "num_blocks": 100})
    assert result["cached_blocks"] == 4 * 12 + 120 * 4
    assert 1065 < result["bytes_per_block"] < 1400


@pytest.mark.usefixtures("toys")
def test_growth_shows_a_target_that_looks_at_every_block() -> None:
    points = bench_job.growth(
        {"factory": factory("slowing"), "block_size": 64, "sizes": [1000, 30_000], "samples": 8}
    )["points"]
    assert [point["cached_blocks"] for point in points] == [1000, 30_000]
    small, large = (point["nanoseconds_per_token"] for point in points)
    assert large > 2 * small
    assert all(p["low"] <= p["nanoseconds_per_token"] <= p["high"] for p in points)


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("job", [bench_job.run, bench_job.memory, bench_job.growth])
def test_a_module_without_cycles_says_so(job: Any) -> None:
    assert job({"factory": factory("bare")}) == {
        "unsupported": "kvproof_test_bare has no make_cycle"
    }


@pytest.mark.slow(reason="measures a whole workload")
def test_the_reference_hits_what_its_rules_allow() -> None:
    spec = "multi-turn:requests=150,user=40,reply=60,system=100"
    workload = load_workload(spec)
    (case,) = plan(workload, 16, cases=["no_eviction"], max_blocks=1 << 20)
    result = bench_job.run(
        {"factory": REFERENCE, "workload": spec, "block_size": 16, "num_blocks": case.num_blocks}
    )
    assert result["problem"] == ""
    assert result["hit_tokens"] / workload.tokens == pytest.approx(
        Depths(engine_blocks(workload, 16)).infinite().tokens
    )


class Closing:
    """The reference, which notes when it is closed."""

    closed = 0

    def __init__(self, config: TargetConfig, *, blind: bool = False) -> None:
        self._target, self._blind = make_target(config), blind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def admit(self, request: Request, compute: int | None = None) -> Any:
        if self._blind:  # a hit that nobody wrote
            raise Violation("nothing_is_served_unwritten", "shadow", "it is blind")
        return self._target.admit(request, compute)

    def close(self) -> None:
        Closing.closed += 1
        self._target.close()


def blind(config: TargetConfig) -> Closing:
    return Closing(config, blind=True)


@pytest.mark.parametrize(("name", "verdict"), [("Closing", "pass"), ("blind", "fail")])
def test_a_checked_target_is_closed_whatever_comes_of_it(name: str, verdict: str) -> None:
    Closing.closed = 0
    checked = {"workload": WORKLOAD, "block_size": 16, "num_blocks": 100, "max_tokens": 2_000}
    assert checked_job.run({"factory": f"{__name__}:{name}", **checked})["verdict"] == verdict
    assert Closing.closed == 1
