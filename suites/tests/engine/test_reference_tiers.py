"""Blocks that were evicted come back: as many as a large pool would have, in time, and counted."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from kvproof.reference.cache.request_state import Refusal
from kvproof.reference.cache_server.connection import CacheServerGone
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import IdentityError, Namespace, token_bytes
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.observe.explainer import Explainer
from kvproof.reference.stores.object_store import Lease
from kvproof.reference.tiers.host_tier import HostTier
from kvproof.reference.tiers.object_key import ObjectKeys
from kvproof.suites.reference.tiered_hits.strategies import FULL, GROUPS, Shared


def engine(num_blocks, groups=(FULL,), *, host=0, remote=None, disk=None, **options):
    cache = CacheConfig(num_blocks, groups=groups, **options)
    built = EngineConfig(
        cache, max_batch_tokens=64, host_tier=host, disk_tier=disk, weights="w", poison_freed=True
    )
    return Engine(built, SymbolicModel(cache), remote=remote)


def served(subject, tokens):
    """Serve one prompt; returns its answer and what it hit."""
    before = subject.cache.statistics.cumulative.hits
    [answer] = subject.generate([tokens], max_new_tokens=2)
    return answer, subject.cache.statistics.cumulative.hits - before


def prompts(seed, count=60, length=40):
    draw = random.Random(seed)
    bases = [[draw.randrange(3) for _ in range(length)] for _ in range(4)]
    for _ in range(count):
        tail = [draw.randrange(3) for _ in range(draw.randrange(3))]
        yield draw.choice(bases)[: draw.randrange(1, length)] + tail


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("seed", range(3))
def test_a_small_pool_with_a_large_tier_hits_as_much_as_a_large_pool(name, seed):
    large = engine(9000, GROUPS[name])
    room = 12 * large.cache.eviction.row_width + 2
    small = engine(room, GROUPS[name], host="1GiB")
    answers = [(served(small, tokens), served(large, tokens)) for tokens in prompts(seed)]
    assert all(one == other for one, other in answers)
    assert sum(small.tiers.loaded.values()) > 0


@pytest.mark.parametrize("pool", ["shared", "separate"])
def test_a_recurrent_state_comes_back_with_or_without_its_blocks(pool):
    groups = (FULL, GroupConfig("state", 4, state_blocks=2))
    subject = engine(40, groups, host="1GiB", state_pool=pool, max_requests=2)
    tokens = [0, 1, 2] * 7
    answer, _ = served(subject, tokens)
    subject.cache.evict(100)
    if pool == "separate":
        subject.cache.eviction.states.evict_one()
        subject.cache.eviction.states.evict_one()
    assert served(subject, tokens) == (answer, 20)
    assert subject.tiers.loaded == {"host": 20}
    while subject.cache.eviction.states.evict_one():  # its blocks stay
        pass
    assert served(subject, tokens) == (answer, 20)
    assert subject.tiers.loaded == {"host": 40}


def test_expert_rows_come_back_with_their_blocks():
    options = {"return_routed_experts": True, "experts": (300, 2, 2)}
    subject = engine(40, host="1GiB", **options)
    tokens = [0, 1, 2] * 7

    def rows():
        subject.add_request("r", tokens, max_new_tokens=2)
        outputs = [output for _ in range(4) for output in subject.step()]
        return outputs[-1].experts

    first = rows()
    subject.cache.evict(100)
    again = rows()
    assert subject.tiers.loaded == {"host": 20}
    assert again.missing == ()
    assert (again.rows == first.rows).all()


# --- C8 ---


class Late:
    """A source whose objects are here after `polls` polls."""

    def __init__(self, store, polls):
        self.store, self.where, self.polls = store, store.where, polls
        self.cancelled = 0

    def fetch(self, keys):
        return LateFetch(self, self.store.acquire(keys))


class LateFetch:
    def __init__(self, source, lease):
        self.source, self.lease, self.left = source, lease, source.polls

    def poll(self):
        self.left -= 1
        return self.lease if self.left < 0 else None

    def cancel(self):
        self.source.cancelled += 1
        self.lease.release()


def loading(polls, patience=100):
    """An engine with one prompt in host memory only, and the next one waiting for it."""
    subject = engine(40, host="1GiB")
    tokens = [0, 1, 2] * 7
    answer, _ = served(subject, tokens)
    subject.cache.evict(100)
    subject.tiers.source = Late(subject.tiers.host, polls)
    subject.tiers.patience = patience
    subject.add_request("late", tokens, max_new_tokens=2)
    subject.step()
    return subject, answer


def finish(subject):
    steps, outputs = 0, []
    while subject.busy:
        steps, outputs = steps + 1, outputs + subject.step()
        assert not subject.stuck
    return steps, outputs[-1].tokens


def test_a_request_waits_for_objects_on_their_way_and_changes_nothing_else():
    subject, answer = loading(polls=6)
    assert subject.tiers.num_loading == 1
    assert subject.cache.usage().cached == 0
    assert subject.tiers.host.status().pinned == 5
    assert finish(subject)[1] == answer
    assert subject.tiers.loaded == {"host": 20}
    assert subject.tiers.host.status().pinned == subject.tiers.num_loading == 0


def test_it_waits_no_longer_than_its_patience_and_computes():
    subject, answer = loading(polls=1000, patience=5)
    steps, tokens = finish(subject)
    assert (tokens, subject.tiers.abandoned, subject.tiers.loaded) == (answer, 1, {})
    assert steps < 12
    assert subject.tiers.host.status().pinned == 0
    assert subject.cache.statistics.cumulative.hits == 0


@pytest.mark.parametrize("how", ["cancel", "reset"])
def test_objects_on_their_way_are_released_when_no_request_may_use_them(how):
    subject, answer = loading(polls=6)
    subject.cancel("late") if how == "cancel" else subject.reset()
    assert (subject.tiers.source.cancelled, subject.tiers.num_loading) == (1, 0)
    assert subject.tiers.host.status().pinned == 0
    if how == "reset":
        assert finish(subject)[1] != answer  # the weights are others
        assert subject.tiers.loaded == {}


def test_who_may_not_read_gets_nothing_from_the_tiers():
    subject, _ = loading(polls=0)
    finish(subject)
    subject.cache.evict(100)
    before = dict(subject.tiers.loaded)
    subject.add_request("r", [0, 1, 2] * 7, max_new_tokens=1, read=False)
    finish(subject)
    assert subject.tiers.loaded == before
    assert decide(enabled=True, read=False).read is False


def test_a_preempted_request_counts_apart():
    subject, _ = loading(polls=0)
    finish(subject)
    subject.add_request("r", [0, 1, 2] * 7, max_new_tokens=3)
    subject.step()
    subject.scheduler.preempt(subject.scheduler.running["r"])
    subject.cache.evict(100)
    finish(subject)
    assert (subject.tiers.loaded, subject.tiers.loaded_again) == ({"host": 20}, {"host": 20})


# --- what else is below ---


class Asked(Shared):
    """Notes how many objects each call of `lookup` asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def lookup(self, keys):
        self.asked.append(len(keys))
        return super().lookup(keys)


def test_any_object_store_may_be_the_tier_below_and_two_engines_share_it():
    shared, tokens, answers = Shared(), [0, 1, 2] * 7, []
    for _ in range(2):
        subject = engine(40, host=40, remote=shared)  # one object
        answers.append(served(subject, tokens))
        subject.cache.evict(100)
        subject.tiers.host.flush()
    assert answers == [(answers[0][0], 0), (answers[0][0], 20)]
    assert subject.tiers.loaded["remote"] == sum(subject.tiers.loaded.values()) == 20
    subject.reset()
    assert shared.status().objects >= 5, "other hosts' entries stay (H6)"
    assert served(subject, tokens)[1] == 0


def test_an_object_of_the_wrong_size_is_dropped_and_computed():
    shared, tokens = Shared(), [0, 1, 2] * 7
    subject = engine(40, host=40, remote=shared)
    answer, _ = served(subject, tokens)
    subject.cache.evict(100)
    subject.tiers.host.flush()
    subject.tiers.host.clear()
    key = next(key for key in shared.objects)
    shared.objects[key] += b"\0"
    answer_again, hit = served(subject, tokens)
    assert (answer_again, hit < 20, key in shared.objects) == (answer, True, False)


def test_a_hit_is_told_of_the_slowest_tier_that_it_needed(tmp_path):
    """Host memory takes one object, the disk two; the remote store takes everything."""
    shared, tokens, object_bytes = Shared(), [0, 1, 2] * 7, 32
    disk = (tmp_path, 2 * (object_bytes + 64))
    first = engine(40, host=40, disk=disk, remote=shared)
    answer, _ = served(first, tokens)
    first.cache.evict(100)
    assert first.tiers.host.status().objects == 1
    assert first.tiers.disk.status().objects == 2
    assert served(first, tokens) == (answer, 20)
    assert first.tiers.loaded == {"remote": 8, "disk": 8, "host": 4}
    first.close()
    assert len(shared.objects) == 5, "what was in host memory is shared as well"


def test_a_lookup_tells_what_tiers_would_bring_back():
    subject, tokens = engine(40, host="1GiB"), [0, 1, 2] * 7
    assert subject.cache.lookup(tokens) == 0
    served(subject, tokens)
    subject.cache.evict(100)
    before = subject.tiers.host.keys()
    assert subject.cache.lookup(tokens) == 20
    with subject.tiers.without_loading():
        assert subject.cache.lookup(tokens) == 0
    assert subject.tiers.host.keys() == before
    assert (subject.tiers.num_loading, subject.tiers.host.status().pinned) == (0, 0)
    assert served(subject, tokens)[1] == 20


def test_a_far_store_is_asked_for_many_objects_at_once():
    shared, tokens = Asked(), [*range(3)] * 200
    for _ in range(2):
        subject = engine(400, host=40, remote=shared)
        shared.asked.clear()
        served(subject, tokens)
        subject.cache.evict(1000)
        subject.close()
    assert subject.tiers.loaded == {"remote": 596}
    assert max(shared.asked) == 149
    assert len(shared.asked) < 10, "149 units, asked for 64 at a time"


def test_memory_that_cannot_be_had_is_counted():
    def refuse(_: int) -> bytearray:
        raise MemoryError

    tier = HostTier(100, allocate=refuse)
    assert tier.store({b"k" * 32: b"12"}) == frozenset()
    assert (tier.counts.errors, tier.counts.left_out, tier.status().bytes) == (1, 1, 0)


def test_keys_are_equal_in_another_process():
    code = (
        "from kvproof.suites.reference.tiers.keys import Content\n"
        "print(Content(tuple(range(8)), unit=1, part='state').key().hex())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(keys) == 1
    assert len(keys.pop().strip()) == 64


def test_links_are_extended_as_a_request_grows():
    keys, tokens = ObjectKeys(CacheConfig(8, 4)), token_bytes(list(range(20)))
    links = keys.chain(Namespace(), tokens, (), 5)
    assert keys.chain(Namespace(), tokens[:32], (), 2) == links[:2]


# --- explaining ---


def test_causes_of_a_hit_add_up_with_tiers():
    cache = CacheConfig(40, groups=(FULL,))
    options = EngineConfig(cache, host_tier="1GiB")
    front = Engine(options, SymbolicModel(cache)).cache
    explainer = Explainer(front)
    tokens = list(range(30))
    for evicted in (0, 100, 3):
        step = front.begin_step()
        answer = front.admit("r", tokens)
        assert not isinstance(answer, Refusal)
        front.end_step(step)
        front.release("r")
        front.evict(evicted)
        said = explainer.explain("r")
        assert said.hit == answer.hit
        assert said.optimum - said.hit == sum(said.lost.values())
    assert answer.hit == 28


class Gone(Shared):
    """A store whose server may be lost."""

    lost = False

    def store(self, objects):
        return self.unless_lost(super().store, objects)

    def lookup(self, keys):
        return self.unless_lost(super().lookup, keys)

    def acquire(self, keys):
        return self.unless_lost(super().acquire, keys)

    def unless_lost(self, call, argument):
        if self.lost:
            raise CacheServerGone("no cache server answers at ipc:///nowhere")
        return call(argument)


def test_a_remote_store_that_is_gone_fails_no_request_and_is_used_when_it_is_back(caplog):
    shared, tokens = Gone(), [0, 1, 2] * 7
    with_it = engine(40, host=40, remote=shared)
    answer, _ = served(with_it, tokens)
    with_it.close()
    subject = engine(12, host=40, remote=shared)
    subject.tiers.remote._breaker.backoff_s = 0.0
    shared.lost = True
    for number in range(3):
        assert served(subject, [number, 3] * 14)[1] == 0
    assert served(subject, tokens) == (answer, 0)
    failures = subject.tiers.remote.failures
    shared.lost = False
    subject.cache.evict(100)
    assert served(subject, tokens) == (answer, 20)
    assert (failures > 0, subject.tiers.remote.failures) == (True, failures)
    reported = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert reported == [
        "remote store: no cache server answers at ipc:///nowhere; "
        "what it has is missed, next attempt in 0 s",
        "remote store: answers again",
    ]


class Unreadable(Shared):
    """A store that knows its objects and hands out none of them, as when reads time out."""

    def acquire(self, keys):
        return Lease([None] * len(keys))


def test_what_one_host_cannot_read_stays_for_the_others():
    shared, tokens = Shared(), [0, 1, 2] * 7
    writer = engine(40, host=40, remote=shared)
    answer, _ = served(writer, tokens)
    writer.close()
    unlucky = Unreadable()
    unlucky.objects = shared.objects
    assert served(engine(40, host=40, remote=unlucky), tokens) == (answer, 0)
    assert served(engine(40, host=40, remote=shared), tokens) == (answer, 20)


def tiered(num_blocks, model_tokens):
    """A manager whose host tier has the blocks of `model_tokens`, and whose pool has none."""
    subject = engine(num_blocks, host="1GiB")
    served(subject, model_tokens)
    subject.cache.evict(100)
    return subject.cache


def test_a_request_of_a_refused_ones_name_gets_nothing_of_its_tokens():
    cache = tiered(12, [0, 1, 2] * 11)
    cache.begin_step()
    cache.admit("holder", [5] * 30)
    assert isinstance(cache.admit("r", [0, 1, 2] * 11), Refusal)
    cache.release("holder")
    cache.end_step(cache.begin_step() - 1)
    other = cache.admit("r", [7, 8, 9] * 11)
    assert (other.hit, cache.lookup([7, 8, 9] * 11)) == (0, 0)


@pytest.mark.parametrize("arguments", [{"request_id": "live"}, {"compute": -1}, {"tokens": []}])
def test_an_admission_that_is_an_error_brings_nothing_back(arguments):
    cache = tiered(40, [0, 1, 2] * 7)
    cache.begin_step()
    cache.admit("live", [5] * 8)
    before = cache.usage()
    given = {"request_id": "r", "tokens": [0, 1, 2] * 7} | arguments
    with pytest.raises((IdentityError, ValueError)):
        cache.admit(given.pop("request_id"), given.pop("tokens"), **given)
    assert (cache.usage(), cache.eviction.listener.host.status().pinned) == (before, 0)
