"""Metrics that Prometheus reads, and log lines (V2)."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.observe.cache_metrics import CacheMetrics
from kvproof.reference.observe.prometheus import CacheCollector

A = list(range(30))
HYBRID = (GroupConfig("full", 4), GroupConfig("state", 4), GroupConfig("window", 4, 9))


def counted(num_blocks: int = 40, groups: tuple[GroupConfig, ...] = HYBRID) -> CacheMetrics:
    return CacheMetrics(CacheManager(CacheConfig(num_blocks, 4, groups=groups)))


def serve(metrics: CacheMetrics, name: str, tokens: list[int], **options: object) -> None:
    step = metrics.manager.begin_step()
    metrics.manager.admit(name, tokens, **options)
    metrics.manager.end_step(step)
    metrics.manager.release(name)


def scraped(metrics: CacheMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(CacheCollector(metrics))
    return registry


def test_hits_and_queries_count_resumed_requests_apart():
    metrics = counted()
    registry = scraped(metrics)
    serve(metrics, "a", A)
    serve(metrics, "a", A, resumed=True)
    serve(metrics, "b", A, access=decide(enabled=True, read=False))
    values = {
        (name, kind): registry.get_sample_value(f"kvproof_{name}_tokens_total", {"request": kind})
        for name in ("query", "hit")
        for kind in ("new", "resumed")
    }
    assert values == {
        ("query", "new"): 30,
        ("hit", "new"): 0,
        ("query", "resumed"): 30,
        ("hit", "resumed"): 28,
    }
    assert registry.get_sample_value("kvproof_requests_admitted_total") == 3
    assert registry.get_sample_value("kvproof_rolling_hit_rate") == 0


def test_blocks_refusals_steps_and_epoch_are_read_when_asked():
    metrics = counted()
    registry = scraped(metrics)
    metrics.manager.begin_step()
    metrics.manager.admit("a", A[:4])
    metrics.manager.admit("b", A * 20)
    owners = {
        owner: registry.get_sample_value("kvproof_blocks", {"owner": owner})
        for owner in ("free", "held", "cached")
    }
    assert owners == metrics.manager.usage()._asdict()
    assert owners["held"] > 0
    refused = registry.get_sample_value("kvproof_refusals_total", {"reason": "never_fits"})
    assert refused == 1
    assert registry.get_sample_value("kvproof_steps_in_flight") == 1
    metrics.manager.reset()
    assert registry.get_sample_value("kvproof_epoch") == 1


def test_evicted_blocks_and_checkpoints_are_counted():
    metrics = counted()
    serve(metrics, "a", A)
    evicted = metrics.manager.evict(1000)
    counts = metrics.evicted
    registry = scraped(metrics)
    assert sum(counts.values()) == len(evicted) > 0
    for group, count in counts.items():
        labels = {"group": str(group)}
        assert registry.get_sample_value("kvproof_evicted_blocks_total", labels) == count
    serve(metrics, "a", A)
    serve(metrics, "b", A)
    found = [
        registry.get_sample_value("kvproof_checkpoints_total", {"event": event})
        for event in ("saved", "restored", "evicted")
    ]
    assert found == [2, 1, 1]


def test_every_listener_is_notified_of_an_eviction():
    manager = CacheManager(CacheConfig(40, 4))
    evicted: list[int] = []
    manager.eviction.on_evicted.append(lambda group, ids: evicted.extend(ids.tolist()))
    metrics = CacheMetrics(manager)
    serve(metrics, "a", A)
    assert sorted(manager.evict(100)) == sorted(evicted)
    assert metrics.evicted[0] == len(evicted) == 7


def test_every_name_begins_alike_and_states_are_left_out_without_states():
    text = generate_latest(scraped(counted(groups=()))).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert len(names) == 9
    assert all(name.startswith("kvproof_") for name in names)
    assert "checkpoints" not in text


def test_log_lines_name_request_and_blocks(caplog: pytest.LogCaptureFixture):
    metrics = counted()
    with caplog.at_level(logging.DEBUG, "kvproof.reference"):
        serve(metrics, "a", A)
        serve(metrics, "b", A)
        metrics.manager.evict(1000)
    lines = [record.getMessage() for record in caplog.records]
    verbs = {line.split()[0] for line in lines}
    assert verbs == {"match", "save", "restore", "evict"}
    assert "match request=b hit=28 access=allowed blocks=[1, 2, 3, 4, 5, 6, 7]" in lines
    assert any(line.startswith("restore request=b tokens=28 from=[") for line in lines)


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture):
    serve(counted(), "a", A)
    assert caplog.records == []


def test_without_the_client_the_error_says_how_to_get_it():
    code = (
        "import sys; sys.modules['prometheus_client'] = None; "
        "import kvproof.reference.observe.prometheus"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "pip install 'kvproof[metrics]'" in ended.stderr
