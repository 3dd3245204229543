"""The cache server through real sockets, with real processes that stop and die."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("zmq", reason="the cache server needs the extra `server`")

from kvproof.reference.cache_server import messages as m
from kvproof.reference.cache_server.address import AddressError, parse
from kvproof.reference.cache_server.arena import ArenaError
from kvproof.reference.cache_server.client import connect
from kvproof.reference.cache_server.connection import CacheServerGone, CacheServerRefused
from kvproof.reference.cache_server.core import Settings
from kvproof.reference.cache_server.server import HARD_LIMIT, Server
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_server.contract import contract_part, judge
from kvproof.suites.reference.cache_server.contract_machine import Traits
from kvproof.suites.reference.cache_server.model import content, key
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK
from kvproof.suites.tests.lab.stress.cache_server.process import ServerProcess
from kvproof.suites.tests.patience import LONG, until

SIZE = 1 << 20
SPAWN = multiprocessing.get_context("spawn")
SLOW = LONG


@pytest.fixture
def server(tmp_path, request):
    """A server whose patience with its clients is the parameter."""
    patience = getattr(request, "param", LONG)
    with ServerProcess(tmp_path, size=SIZE, patience=patience) as running:
        yield running


@contextmanager
def hurried(client):
    """Short of patience while it cannot be answered, and only then."""
    connection = client._connection
    before, connection._timeout = connection._timeout, 0.3
    yield
    connection._timeout = before


@pytest.fixture
def client(server):
    with server.client() as opened:
        yield opened


def has_ipv6_loopback():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
        return True


def objects(*numbers, size=1000):
    return {key(n): content(key(n), size) for n in numbers}


def hold(address, reported, size):
    """Read one object under a lease and write half of another one; then do nothing."""
    store = connect(address, timeout=SLOW)
    lease = store.acquire([key(0)])
    room = store.reserve({key(1): size})
    half = content(key(1), size)[: size // 2]
    room.views[key(1)][: size // 2] = half
    reported.put((os.getpid(), lease.views[0] is not None))
    time.sleep(SLOW)
    room.views[key(1)][:] = b"\xff" * size


@pytest.fixture
def holder(server, client):
    """A process that holds a lease on object 0 and half of object 1, of half the memory."""
    client.store(objects(0))
    reported = SPAWN.SimpleQueue()
    process = SPAWN.Process(target=hold, args=(server.address, reported, SIZE // 2))
    process.start()
    assert reported.get() == (process.pid, True)
    yield process
    process.kill()
    process.join()


# --- clients that end ---


def test_a_killed_client_leaves_nothing_and_is_seen_before_the_next_message(client, holder):
    assert client.store(objects(1)) == frozenset()  # it is being written
    holder.kill()
    holder.join()
    report = client.report()
    assert (report.leased, report.reserved, report.objects) == (0, 0, 1)
    assert len(report.sessions) == 1
    assert client.lookup([key(1)]) == [False]
    assert client.store(objects(1)) == {key(1)}


@pytest.mark.parametrize("server", [2.0], indirect=True)
def test_a_stopped_client_keeps_its_memory_and_loses_its_key(client, holder):
    os.kill(holder.pid, signal.SIGSTOP)
    until(lambda: client.report().dropped)  # its patience is over
    assert client.store(objects(1)) == {key(1)}
    large = objects(*range(10, 40), size=SIZE // 16)
    kept = client.store(large)
    assert 0 < len(kept) < 8  # half of the memory is out of reach
    assert client.lookup([key(0)]) == [True]
    session = next(each for each in client.report().sessions if each.pid == holder.pid)
    assert (session.provable, session.lapsed, session.reserved) == (True, True, 1)
    os.kill(holder.pid, signal.SIGCONT)
    with client.acquire(sorted(kept)) as lease:
        assert dict(zip(sorted(kept), lease.views, strict=True)) == {k: large[k] for k in kept}
    holder.kill()
    holder.join()
    assert len(client.store(large)) > 8


def test_a_client_that_leaves_takes_its_leases_along(server, client):
    client.store(objects(0))
    with server.client() as other:
        other.acquire([key(0)])
        other.reserve({key(1): 10})
        assert client.report().leased == 1
    assert (client.report().leased, client.report().reserved) == (0, 0)


def test_arrays_over_views_forbid_to_release_them(client):
    client.store(objects(0))
    lease = client.acquire([key(0)])
    array = np.frombuffer(lease.views[0], np.uint8)
    with pytest.raises(BufferError, match=r"slices of 1 views .* delete them first"):
        lease.release()
    assert client.report().leased == 1
    del array
    lease.release()
    lease.release()
    assert client.report().leased == 0


def test_a_child_of_a_fork_is_told_to_connect_itself(client):
    client.store(objects(0))
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            client.lookup([key(0)])
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"does not survive a fork" in os.read(reading, 1000)
    os.close(reading)
    os.close(writing)
    assert client.lookup([key(0)]) == [True]


# --- servers that end ---


def test_clients_find_the_next_server_and_their_leases_stay_readable(server, client):
    client.store(objects(0, 1))
    lease, room = client.acquire([key(0)]), client.reserve({key(2): 10})
    server.kill()
    assert bytes(lease.views[0]) == content(key(0), 1000)
    server.start()
    assert client.lookup([key(0), key(1)]) == [False, False]
    assert room.commit() == frozenset()
    assert client.store(objects(3)) == {key(3)}
    assert bytes(lease.views[0]) == content(key(0), 1000)
    lease.release()
    assert client.report().leased == 0


def test_without_a_server_there_is_one_clear_error(tmp_path):
    address = f"ipc://{tmp_path / 'nobody.sock'}"
    with connect(address, timeout=0.3) as client:
        with pytest.raises(CacheServerGone) as raised:
            client.lookup([key(0)])
        assert address in str(raised.value)
        assert "kvproof cache-server" in str(raised.value)


def test_a_lease_ends_without_an_error_when_the_server_is_gone(server):
    with server.client(timeout=LONG) as client:
        client.store(objects(0))
        lease = client.acquire([key(0)])
        server.kill()
        with hurried(client):
            lease.release()
            with pytest.raises(CacheServerGone):
                client.lookup([key(0)])


def test_nothing_is_left_in_the_file_system_by_a_killed_server(server, client, tmp_path):
    client.store(objects(0))
    opened = [str(path.readlink()) for path in Path(f"/proc/{server.pid}/fd").iterdir()]
    assert [path for path in opened if path.startswith("/dev/shm/")] == []
    assert sum("/memfd:kvproof-cache-" in path for path in opened) == 1  # the kernel's to free
    server.kill()
    server.start()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.sock", "cache.sock.lock"]


def test_an_answer_that_took_too_long_is_given_back_before_the_next_call(server):
    with server.client(timeout=LONG) as client, server.client(timeout=LONG) as other:
        client.store(objects(0))
        os.kill(server.pid, signal.SIGSTOP)
        with hurried(client):
            with pytest.raises(CacheServerGone):
                client.acquire([key(0)])
            with pytest.raises(CacheServerGone):
                client.reserve({key(1): 10})
        os.kill(server.pid, signal.SIGCONT)
        assert other.lookup([key(0)]) == [True]
        answered(client)
        assert (other.report().leased, other.report().reserved) == (0, 0)


def test_a_commit_that_was_never_sent_keeps_no_room_and_no_key(server):
    with server.client(timeout=LONG) as client, server.client(timeout=LONG) as other:
        room = client.reserve({key(1): 10})
        os.kill(server.pid, signal.SIGSTOP)
        with hurried(client):
            with pytest.raises(CacheServerGone):
                client.lookup([key(0)])  # whose answer is asked for before anything is sent
            with pytest.raises(CacheServerGone):
                room.commit()
        os.kill(server.pid, signal.SIGCONT)
        answered(client)
        assert other.report().reserved == 0
        assert other.store(objects(1)) == {key(1)}


def answered(client):
    """Wait until a server that was stopped answers again."""

    def is_heard():
        with suppress(CacheServerGone):
            client.heartbeat()
            return True

    until(is_heard)


# --- who may come, and with what ---


def test_the_contract_of_all_stores_holds_through_sockets(server):
    class Provider:
        name = "cache server, through sockets"
        traits = Traits(largest=200_000, capacity=300_000, least_recent_first=True)
        clients = ()

        def fresh(self, clients):
            for client in self.clients:
                client.close()
            self.clients = [server.client() for _ in range(clients)]
            self.clients[0].clear()
            return self.clients

    provider, few = Provider(), UNSHRUNK.__class__(UNSHRUNK, max_examples=25)
    seen = explore(contract_part(provider), few)
    assert (seen.violation, seen.died) == (None, None)
    judge(provider, seen)
    for client in provider.clients:
        client.close()


def test_messages_of_any_kind_are_answered_and_hurt_nobody(server, client):
    import zmq

    context = zmq.Context()
    for data in (b"", b"\xc1", b"\x91" * 50_000, bytes(m.MOST_BYTES + 1), b"GET / HTTP/1.1"):
        with context.socket(zmq.DEALER) as asking:
            asking.setsockopt(zmq.LINGER, 0)
            asking.connect(server.address)
            asking.send(data)
            assert asking.poll(SLOW * 1000)
            answer = m.answers.decode(asking.recv())
            assert isinstance(answer.body, m.Refused)
            asking.send(bytes(HARD_LIMIT + 1))
    context.term()
    assert client.store(objects(0)) == {key(0)}


def test_a_client_that_does_not_read_stops_nobody(server, client):
    import zmq

    context = zmq.Context()
    with context.socket(zmq.DEALER) as deaf:
        deaf.setsockopt(zmq.LINGER, 0)
        deaf.setsockopt(zmq.RCVHWM, 1)
        deaf.connect(server.address)
        for _ in range(5_000):
            deaf.send(b"\xc1")
        assert client.store(objects(0)) == {key(0)}
    context.term()


def test_threads_share_a_client(client):
    wrong = []

    def work(number):
        for _ in range(20):
            client.store(objects(number))
            with client.acquire([key(number)]) as lease:
                if lease.views[0] != content(key(number), 1000):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.report().leased == 0


def test_a_second_server_at_an_address_is_refused(server):
    with pytest.raises(AddressError, match="another cache server listens"):
        Server(parse(server.address), Settings(SIZE))


def test_memory_that_cannot_be_had_is_refused(tmp_path):
    with pytest.raises(ArenaError, match="cannot be had"):
        Server(parse(f"ipc://{tmp_path / 'large.sock'}"), Settings(1 << 60))


def test_layouts_do_not_mix_in_a_namespace(server):
    with (
        connect(server.address, namespace="w", layout=b"a") as one,
        connect(server.address, namespace="w", layout=b"b") as two,
        connect(server.address, namespace="v", layout=b"b") as three,
    ):
        assert one.store(objects(0)) == {key(0)}
        with pytest.raises(CacheServerRefused, match="namespace 'w' have layout 61, not 62"):
            two.lookup([key(0)])
        assert three.lookup([key(0)]) == [False]


@pytest.mark.parametrize(
    "text",
    ["", "cache.sock", "ipc://relative", "ipc:///" + "x" * 120, "tcp://localhost", "udp://1.2.3.4:5",
     "tcp://host:70", "tcp://127.0.0.1:99999"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(AddressError, match="for example"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "local"),
    [("ipc:///run/a.sock", True), ("tcp://127.0.0.1:1", True), ("tcp://[::1]:1", True),
     ("tcp://0.0.0.0:1", False), ("tcp://10.0.0.1:1", False)],
)  # fmt: skip
def test_what_other_machines_reach_is_known(text, local):
    assert parse(text).local is local


def test_a_server_that_ends_before_its_memory_is_mapped_is_no_matter(server, client):
    client.heartbeat()
    server.kill()
    server.start()
    assert client.store(objects(0)) == {key(0)}
    with client.acquire([key(0)]) as lease:
        assert lease.views[0] == content(key(0), 1000)


@pytest.mark.parametrize("text", ["nonsense", "", "udp://127.0.0.1:5", "tcp://127.0.0.1"])
def test_a_client_of_no_address_is_told_what_one_is(text):
    with pytest.raises(AddressError, match=r"tcp://127\.0\.0\.1:7070"):
        connect(text)


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback")
def test_a_server_listens_at_an_ipv6_address(tmp_path):
    with Server(parse("tcp://[::1]:0"), Settings(SIZE)) as server:
        ended = threading.Event()
        thread = threading.Thread(target=server.serve, args=(ended.is_set,))
        thread.start()
        try:
            with connect(server.address, timeout=SLOW) as client:
                assert client.store(objects(0)) == {key(0)}
        finally:
            ended.set()
            thread.join()


def test_a_closed_client_says_so(server):
    client = server.client()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="is closed"):
        client.lookup([key(0)])


def test_a_server_that_may_open_too_few_files_says_so(tmp_path, monkeypatch):
    """ZeroMQ would end the process."""
    real, left = os.open, 5

    def opened(path, *rest, **more):
        nonlocal left
        left -= path == os.devnull
        if left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match="Too many open files"):
        Server(parse(f"ipc://{tmp_path}/s.sock"), Settings(size=1 << 20))
    assert len([*Path("/proc/self/fd").iterdir()]) == before
