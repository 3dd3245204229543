"""Faults of a cache show in a real server's answers: `kvproof serve`, with the symbolic model.

Its answer depends on every entry that a step reads, so that texts tell what accuracy would have to
be lost for with a real one.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from kvproof.eval.config import Configuration, EvalConfig, Judge, Protocol, Server
from kvproof.suites.tests.eval_kit import judged, run_small


class Planted(NamedTuple):
    module: str
    old: str
    new: str


FAULTS = {
    "wrong-block-after-a-hit": Planted(
        "reference.holdings",
        "request.table = node.table()\n",
        "request.table = node.table()\n        request.table[:1] = request.table[-1:]\n",
    ),
    "position-off-by-one": Planted(
        "reference.cache_manager",
        "        start = request.computed\n        self.holdings.hold",
        "        start = request.computed + bool(request.computed)\n        self.holdings.hold",
    ),
    "kernel-block-mapping": Planted(
        "reference.block_table",
        "np.arange(ratio, dtype=np.int32)",
        "np.zeros(ratio, dtype=np.int32)",
    ),
}

SERVE = ("serve", "--model", "symbolic", "--port", "{port}", "--max-model-len", "20000",
         "--num-blocks", "4000", "--block-size", "64", "--kernel-block-size", "16")  # fmt: skip


def launched(name: str, fault: Planted | None = None) -> Configuration:
    start = ("{python}", "-m", "kvproof.suites.tests.eval_planted", *fault) if fault else None
    server = Server(launch=(*(start or ("{kvproof}",)), *SERVE), ready_within=60)
    return Configuration(name=name, server=server)


def test_planted_faults_flip_texts_and_a_correct_cache_flips_none(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    off, again = (
        Configuration(
            name=name,
            control=name == "off again",
            prefix_cache=False,
            arguments=("--no-enable-prefix-caching",),
            server=launched(name).server,
        )
        for name in ("off", "off again")
    )
    config = EvalConfig(
        protocol=Protocol(phases=("cold", "warm"), max_tokens=4, retries=0),
        judge=Judge(rule="texts"),
        configuration=(off, again, launched("on"), *(launched(n, f) for n, f in FAULTS.items())),
    )
    kept = run_small(tmp_path, config)
    found = {(row.after, row.phase): row for row in judged(config, kept).rows}
    for phase in ("cold", "warm"):
        assert found["off again", phase].texts == 0
        assert found["on", phase].verdict == "pass", found["on", phase].reasons
        assert found["on", phase].texts == 0
    verdicts = {name: found[name, "warm"].verdict for name in FAULTS}
    assert verdicts == dict.fromkeys(FAULTS, "fail")
    assert found["wrong-block-after-a-hit", "cold"].texts == 0
    assert found["kernel-block-mapping", "cold"].verdict == "fail"
