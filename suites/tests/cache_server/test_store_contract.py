"""The contract of stores passes a right store, and finds what is wrong in others."""

from __future__ import annotations

import pytest

from kvproof.suites.framework.component_suite import run
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.cache_server.contract import contract_part, judge
from kvproof.suites.reference.cache_server.contract_properties import PROPERTIES
from kvproof.suites.reference.cache_server.remote import SUITE
from kvproof.suites.tests.agreement.agreement_kit import component_agrees
from kvproof.suites.tests.cache_server.store_kit import DictProvider, DictStore
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK


class Torn(DictStore):
    def store(self, objects):
        return super().store({k: v[:250].ljust(len(v), b"\0") for k, v in objects.items()})


class SaysYes(DictStore):
    def store(self, objects):
        super().store(objects)
        return frozenset(objects)


class MissesOne(DictStore):
    def acquire(self, keys):
        return super().acquire([*keys[:3], *(bytes(32) for _ in keys[3:])])


class EvictsLeased(DictStore):
    def room(self, size, spared):
        self.leases.clear()
        return super().room(size, spared)


class Restless(DictStore):
    def drop(self, keys):
        for key in set(keys) & self.objects.keys():
            if id(self.objects[key]) in self.leases:
                self.objects[key][:] = bytes(len(self.objects[key]))
        return super().drop(keys)


class NewestFirst(DictStore):
    def store(self, objects):
        kept = super().store(objects)
        for key in kept:
            self.objects.move_to_end(key, last=False)
        return kept


class ForgetsAtLookup(DictStore):
    def status(self):
        reported = super().status()
        if len(self.objects) > 3:
            self.objects.popitem()
        return reported


class KeepsDropped(DictStore):
    def drop(self, keys):
        return sum(key in self.objects for key in set(keys))


class CountsTwice(DictStore):
    def status(self):
        reported = super().status()
        return reported._replace(pinned=sum(self.leases.values()))


FAULTS = (
    ("an_object_is_whole_or_not_there", Torn),
    ("what_is_stored_is_there", SaysYes),
    ("lookup_and_acquire_agree", MissesOne),
    ("a_lease_holds_its_bytes", Restless),
    ("objects_go_only_for_room", EvictsLeased),
    ("objects_go_only_for_room", NewestFirst),
    ("objects_go_only_for_room", ForgetsAtLookup),
    ("what_was_dropped_is_gone", KeepsDropped),
    ("the_status_counts_what_is_there", CountsTwice),
)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_a_right_store_passes_and_everything_is_seen():
    provider = DictProvider()
    seen = explore(contract_part(provider), UNSHRUNK)
    judge(provider, seen)
    assert set(seen.checks) == {prop.name for prop in PROPERTIES}


@pytest.mark.parametrize(("prop", "store"), FAULTS, ids=[store.__name__ for _, store in FAULTS])
def test_a_wrong_store_falls_to_its_property(prop, store, tmp_path):
    others = {each.name for each in PROPERTIES} - {prop}
    seen = explore(contract_part(DictProvider(store)), UNSHRUNK, tolerate=others)
    assert seen.violation is not None, (seen.died, seen.tolerated)
    assert seen.violation.property == prop
    component_agrees(seen.counterexample, tmp_path, contract_part(DictProvider()))


def test_every_property_has_its_fault():
    assert {prop for prop, _ in FAULTS} == {prop.name for prop in PROPERTIES}


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="explores until every situation occurs")
def test_what_was_never_seen_is_no_pass():
    class Roomy(DictProvider):
        traits = DictProvider.traits._replace(capacity=10**9)

    provider = Roomy()
    with pytest.raises(AssertionError, match=r"never seen.*an object is evicted"):
        judge(provider, explore(contract_part(provider), UNSHRUNK))


def test_what_was_dropped_under_a_lease_takes_room_for_each_of_its_lives():
    """A fuzz run drew it, and the contract said that there was room."""
    store, acquire = ("store", {"client": 0, "keys": [0]}), ("acquire", {"client": 0, "keys": [0]})
    again = [store, acquire, ("clear", {"client": 0})]
    config = {"clients": 1, "sizes": [700, 800]}
    history = run(SUITE, config, [*again * 5, ("store", {"client": 0, "keys": [1]})])
    assert history.operations[-1].answer == "[] of [1] are there"
