"""Campaigns on a local Ray cluster of three nodes, and with Redis between the workers."""

from __future__ import annotations

from collections import Counter

import pytest

ray = pytest.importorskip("ray", reason="pip install 'kvproof[ray]'")

from ray.cluster_utils import Cluster  # noqa: E402 - ray may be missing

from kvproof.harness.campaign.claims import RayClaims  # noqa: E402 - ray may be missing
from kvproof.harness.campaign.pool import Lost  # noqa: E402 - ray may be missing
from kvproof.harness.campaign.ray_pool import RayPool  # noqa: E402 - ray may be missing
from kvproof.harness.campaign.ray_sweep import RaySweep  # noqa: E402 - ray may be missing
from kvproof.harness.records.campaign_events import UnitDone, UnitLost  # noqa: E402 - ray may be missing
from kvproof.harness.records.events import Failure  # noqa: E402 - ray may be missing
from kvproof.harness.records.run_directory import read_run  # noqa: E402 - ray may be missing
from kvproof.harness.records.sweep_results import latest  # noqa: E402 - ray may be missing
from kvproof.harness.sweep.device_worker import DeviceSlot  # noqa: E402 - ray may be missing
from kvproof.harness.sweep.plan import SweepOptions  # noqa: E402 - ray may be missing
from kvproof.suites.tests.campaigns import campaign_kit  # noqa: E402 - ray may be missing
from kvproof.suites.tests.cli.cli_kit import FAULT, kvproof, refused, started  # noqa: E402 - as above

FEW = "[campaign]\nhistories = 5\n"
MEMORY = 80 << 20

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, of sockets and of its future


@pytest.fixture(scope="module")
def cluster():
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY},
    )
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=MEMORY)
    yield made
    made.shutdown()


@pytest.fixture
def pool(cluster):
    made = RayPool(campaign_kit.die_once, cluster.address, limit=60)
    yield made
    made.close()


def units_of(directory):
    return [event for event in read_run(directory).events if isinstance(event, UnitDone)]


def test_a_task_whose_process_dies_is_lost_and_not_run_again_by_ray(pool, tmp_path):
    pool.submit("0", (str(tmp_path), 0))
    found = []
    while not found:
        found = pool.wait(1)
    assert isinstance(found[0].result, Lost)
    pool.submit("0", (str(tmp_path), 0))
    while not (again := pool.wait(1)):
        pass
    assert again[0].result == 0


def test_a_task_that_hangs_is_told_from_one_that_waits(cluster):
    hangs = RayPool(campaign_kit.hang, cluster.address, limit=10)
    for unit in ("0", "1", "2", "3"):  # one more than there are places
        hangs.submit(unit, None)
    found = []
    while len(found) < 4:
        found += hangs.wait(1)
    hangs.close()
    kinds = Counter(finished.result.kind for finished in found)
    assert kinds == {"hang": 3, "node": 1}


def test_one_claim_wins_on_all_nodes(cluster):
    claims = RayClaims(cluster.address)
    assert claims.claim("p", "unit 1")
    assert not claims.claim("p", "unit 2")
    claims.release("unit 1")
    assert claims.claim("p", "unit 2")
    ray.shutdown()


def test_the_same_seeds_fail_alike_here_and_on_three_nodes(cluster, tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    command = ("fuzz", "--target", FAULT, "--units", "3", "--seed", "1", "--keep-going")
    for name, where in (("local", ()), ("ray", ("--ray", cluster.address))):
        done = kvproof(
            *command, *where, "--database", name, "--output", name + "-run", cwd=tmp_path
        )
        assert done.code == 1, done
    failed = [
        {event.property for event in read_run(tmp_path / f"{name}-run").events
         if isinstance(event, Failure)}
        for name in ("local", "ray")
    ]  # fmt: skip
    assert failed[0] == failed[1] != set()
    assert list((tmp_path / "ray").iterdir())  # not in the folder that the node was started in
    shrunk = Counter(name for event in units_of(tmp_path / "ray-run") for name in event.shrunk)
    assert set(shrunk.values()) == {1}


def test_a_killed_node_costs_nothing_but_time(cluster, tmp_path):
    (tmp_path / "kvproof.toml").write_text(FEW)
    doomed = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    command = ("fuzz", "--units", "8", "--seed", "1", "--ray", cluster.address)
    with started(*command, cwd=tmp_path) as running:
        running.until(lambda: running.has("unit_done"))
        cluster.remove_node(doomed, allow_graceful=False)
        done = running.wait()
    assert done.code in (0, 3), done
    units = units_of(running.record)
    assert Counter(event.seed for event in units) == dict.fromkeys(range(1, 9), 1)
    lost = [e for e in read_run(running.record).events if isinstance(e, UnitLost)]
    again = {event.unit for event in units if event.attempt > 1}
    assert again == {event.unit for event in lost}


def test_redis_may_go_away_and_come_back(tmp_path):
    remote_kit = pytest.importorskip(
        "kvproof.suites.tests.cache_server.remote_kit", reason="kvproof[redis]"
    )
    if remote_kit.BINARY is None:
        pytest.skip("no redis-server or valkey-server on PATH; KVPROOF_REDIS may name one")
    server = remote_kit.Server()
    (tmp_path / "kvproof.toml").write_text(FEW)
    command = ("fuzz", "--units", "6", "--workers", "1", "--seed", "1", "--database", server.url)
    try:
        with started(*command, cwd=tmp_path) as running:
            running.until(lambda: running.has("unit_done"))
            server.kill()
            begun = len(units_of(running.record))
            running.until(lambda: len(units_of(running.record)) >= begun + 2)
            server.start()
            done = running.wait()
    finally:
        server.process.kill()
        server.process.wait()
    assert done.code in (0, 3), done
    units = units_of(running.record)
    assert len(units) == 6
    assert any(event.database.get("unreachable") for event in units)
    assert not any(event.failed for event in units)


def test_a_sweep_over_nodes_judges_the_same_cells(cluster, tmp_path):
    pytest.importorskip("torch", reason="pip install 'kvproof[gpu]'")
    command = ("sweep", "--kernels", "kv_fill", "--providers", "torch", "--device", "cpu")
    few = ("--cells", "cpu", "--filter", "page=16 head_dim=64")
    cells = {}
    for name, where in (("local", ()), ("ray", ("--ray", cluster.address))):
        done = kvproof(*command, *few, *where, "--output", name, cwd=tmp_path)
        assert done.code == 0, done
        events = latest(read_run(tmp_path / name).events)
        cells[name] = {key: cell.outcome for key, cell in events.items()}
    assert cells["ray"] == cells["local"] != {}


def where(self):
    """Node and GPUs of an actor, by Ray's own word."""
    context = ray.get_runtime_context()
    return context.get_node_id(), tuple(context.get_accelerator_ids()["GPU"])


def test_workers_on_gpus_ask_for_one_each(cluster, tmp_path):
    """The GPUs are only counted here: Ray places by what a node says it has."""
    nodes = [cluster.add_node(num_cpus=1, num_gpus=n, object_store_memory=MEMORY) for n in (1, 2)]
    sweep = RaySweep(cluster.address)
    try:
        options = sweep.options(SweepOptions(device="auto", workers=4))
        assert (options.device, options.devices, options.workers) == ("cuda", (0, 1, 2), 1)
        on_gpus = [
            sweep(DeviceSlot("cuda", number), tmp_path / "log") for number in options.devices
        ]
        on_core = sweep(DeviceSlot("cpu", 0), tmp_path / "log")
        placed = [ray.get(each._there().__ray_call__.remote(where)) for each in on_gpus[:2]]
        assert {node for node, _ in placed} <= {node.node_id for node in nodes}
        assert len(set(placed)) == 2
        assert [len(gpus) for _, gpus in placed] == [1, 1]
        assert ray.get(on_core._there().__ray_call__.remote(where))[1] == ()
        assert sweep.options(SweepOptions(device="cpu")).device == "cpu"
    finally:
        for each in (*on_gpus, on_core):
            each.kill()
        ray.shutdown()
        for node in nodes:
            cluster.remove_node(node)


def test_nobody_at_an_address_is_refused(tmp_path):
    refused(
        kvproof("fuzz", "--ray", "127.0.0.1:1", cwd=tmp_path), "no Ray cluster answers", "--ray"
    )
