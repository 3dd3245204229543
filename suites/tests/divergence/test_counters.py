"""Situations that only the counters of a server show, in the text of known engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.harness.errors import Exit
from kvproof.harness.served.counters import figures, means, occurred
from kvproof.suites.tests.divergence.test_divergence_cli import run
from kvproof.suites.tests.lab.stress.http.process import serving

KVPROOF = """
# HELP kvproof_blocks Blocks of the pool by owner
kvproof_blocks{{owner="free"}} {free}
kvproof_blocks{{owner="held"}} {held}
kvproof_query_tokens_total{{request="new"}} 900.0
kvproof_query_tokens_total{{request="resumed"}} {resumed}
kvproof_tier_hit_tokens_total{{request="new",tier="host"}} {host}
"""


def kvproof(free: int = 90, held: int = 10, resumed: int = 0, host: int = 0) -> dict[str, float]:
    return figures(KVPROOF.format(free=free, held=held, resumed=resumed, host=host))


def vllm(share: float = 0.1, preempted: int = 0) -> dict[str, float]:
    label = '{engine="0",model_name="m"}'
    return figures(
        f"vllm:kv_cache_usage_perc{label} {share}\nvllm:num_preemptions_total{label} {preempted}"
    )


def test_counters_are_means_where_they_exist() -> None:
    assert set(means(kvproof())) == {"counters", "host"}
    assert set(means(vllm())) == {"counters"}
    assert not set(means(figures("up 1\nbroken\nnan NaN")))


def test_a_resumed_request_a_full_pool_and_a_tier_occur_between_two_looks() -> None:
    assert not set(occurred(kvproof(), kvproof()))
    assert set(occurred(kvproof(), kvproof(resumed=64))) == {"preempted", "resumed"}
    assert set(occurred(kvproof(), kvproof(free=5, held=95))) == {"pool-full"}
    assert set(occurred(kvproof(host=64), kvproof(host=128))) == {"host"}
    assert set(occurred(vllm(), vllm(share=0.95, preempted=1))) == {
        "preempted", "resumed", "pool-full",
    }  # fmt: skip


@pytest.mark.nightly(reason="counters are read fast")
@pytest.mark.slow(reason="nine seconds of requests")
def test_a_small_pool_brings_about_what_its_counters_show(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    size = ("--num-blocks", "60", "--max-model-len", "1500", "--host-tier", "64MiB")
    with serving("--model", "symbolic", *size) as server:
        sent = ("--documents", "4", "--require", "preempted", "resumed", "host")
        code, found = run(tmp_path, "--url", f"{server.url}/v1", *sent)
    (row,) = found["judgement"]["rows"]
    assert (code, row["reasons"]) == (Exit.PASS, [])
    assert {"preempted", "resumed", "host"} <= {each["situation"] for each in row["seen"]}
    assert {"restart", "weights", "32k"} <= {*row["unaskable"]}
    assert "not to be had by requests: 8k, 32k," in (tmp_path / "run" / "report.md").read_text()
