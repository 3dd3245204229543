"""The simplest store that keeps the contract, and ways to break it."""

from __future__ import annotations

from collections import Counter, OrderedDict

from kvproof.reference.stores.object_store import Lease, StoreStatus
from kvproof.suites.reference.cache_server.contract_machine import Traits


class Counted(Lease):
    """Takes its count of each object back once."""

    def __init__(self, views, store, held):
        super().__init__(views)
        self.store, self.held = store, held

    def release(self):
        super().release()
        self.store.leases -= Counter(id(data) for data in self.held.values())
        for key, data in self.held.items():
            if self.store.objects.get(key) is data and id(data) not in self.store.leases:
                self.store.objects.move_to_end(key)
        self.held = {}


class DictStore:
    """Bytes in a dictionary, least recently used first."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.objects = OrderedDict()
        self.leases = Counter()
        """Of objects, by identity: what is stored again under a key is another object."""

    def store(self, objects):
        kept = set()
        for key, data in objects.items():
            if key in self.objects or self.room(len(data), objects):
                self.objects.setdefault(key, bytearray(data))
                self.objects.move_to_end(key)
                kept.add(key)
        return frozenset(kept)

    def room(self, size, spared):
        while sum(map(len, self.objects.values())) + size > self.capacity:
            idle = (k for k, v in self.objects.items() if id(v) not in self.leases)
            victim = next((key for key in idle if key not in spared), None)
            if victim is None:
                return False
            self.evict(victim)
        return True

    def evict(self, key):
        del self.objects[key]

    def lookup(self, keys):
        return [key in self.objects for key in keys]

    def acquire(self, keys):
        views = [memoryview(self.objects[k]) if k in self.objects else None for k in keys]
        held = {key: self.objects[key] for key in keys if key in self.objects}
        self.leases.update(id(data) for data in held.values())
        for key in held:
            self.objects.move_to_end(key)
        return Counted(views, self, held)

    def drop(self, keys):
        return sum(self.objects.pop(key, None) is not None for key in set(keys))

    def clear(self):
        return self.drop(list(self.objects))

    def status(self):
        held = sum(id(data) in self.leases for data in self.objects.values())
        size = sum(map(len, self.objects.values()))
        return StoreStatus(len(self.objects), size, self.capacity, held)


class DictProvider:
    """All clients are the store itself."""

    name = "dict"
    traits = Traits(largest=300, capacity=1000, least_recent_first=True)

    def __init__(self, make=DictStore):
        self.make = make

    def fresh(self, clients):
        return [self.make(self.traits.capacity)] * clients
