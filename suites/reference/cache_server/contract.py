"""Contract of every object store (G7, H6), checked on any implementation.

How a provider is made
----------------------
A provider is a class with a name, traits, and one method that is called at the start of each
random history:

    class Redis:
        name = "redis"
        traits = Traits(largest=4096)          # never evicts a stored object

        def fresh(self, clients: int) -> Sequence[ObjectStore]:
            '''That many clients of one store, which is empty after any earlier calls.'''
            for client in self._clients:
                client.close()                 # also ends the leases of an earlier history
            self._clients = [RedisStore(self._url, namespace="contract") for _ in range(clients)]
            self._clients[0].clear()
            return self._clients

and the test is two lines:

    seen = explore(contract_part(Redis(url)), UNSHRUNK)      # suites.state_machine
    judge(provider, seen)                                     # no violation, nothing left unseen

All clients are called from one thread. The bytes under a key are a function of the key, so
the expected bytes follow from the key. `Traits` holds the optional promises:

- `capacity`: bytes of payload that are certainly kept after any earlier stores (fragmentation
  and headers taken off); above it objects may be evicted or refused. 0: nothing ever is.
- `largest`: bytes of the largest object that is drawn; a third of `capacity` or less, so that
  several fit and some are evicted.
- `leases_hold`: leased objects are not evicted. Without it a lease is a private copy.
- `counts`: `status` is exact; without it, it is only called.
- `least_recent_first`: evicts in LRU order of stores, acquires and releases; of the objects of
  one call the first is the oldest.
- `restart`: optional; loses the store's process and gets a new one. Afterwards objects
  may be gone; earlier clients and leases go on working.
"""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.reference.cache_server import contract_properties as seen
from kvproof.suites.reference.cache_server.contract_machine import Provider, StoreContractMachine

KEYS = 12
VERBS = ("store", "store", "store", "acquire", "acquire", "release", "release", "lookup", "rare")
RARE = ("drop", "drop", "clear", "restart")


def contract_part(provider: Provider) -> ComponentSuite:
    traits = provider.traits

    def draw_config(draw: Draw) -> Config:
        sizes = st.integers(1, traits.largest) | st.sampled_from((1, traits.largest))
        return {
            "clients": draw(st.integers(1, 3)),
            "sizes": draw(st.lists(sizes, min_size=KEYS, max_size=KEYS)),
        }

    return ComponentSuite(
        name="store_contract",
        properties=seen.PROPERTIES,
        draw_config=draw_config,
        machine=lambda config, coverage: StoreContractMachine(provider, config, coverage),
        draw_operation=_propose,
    )


def _propose(machine: StoreContractMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(VERBS))
    verb = draw(st.sampled_from(RARE)) if verb == "rare" else verb
    client = {"client": draw(st.integers(0, machine.clients - 1))}
    if verb == "restart":
        return verb, {}
    if verb == "clear":
        return verb, client
    if verb == "release":
        return verb, {"lease": draw(st.integers(0, 5))}
    keys = draw(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=6))
    return verb, {**client, "keys": keys}


def judge(provider: Provider, explored: Exploration) -> None:
    assert explored.violation is None, f"{provider.name}: {explored.violation}"
    assert explored.died is None, f"{provider.name}: {explored.died}"
    missing = seen.needed(
        bounded=bool(provider.traits.capacity), restarts=provider.traits.restart is not None
    ) - set(explored.situations)
    assert not missing, f"{provider.name}: never seen: {sorted(missing)}"
