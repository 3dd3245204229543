"""LMCache's handlers with prefixes, windows and several engines at once."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest

if not find_spec("lmcache") or not find_spec("torch"):
    pytest.skip("LMCache is not installed: pip install lmcache==0.5.6", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # LMCache's, about libraries of its own
    import torch

    from kvproof.suites.store.lmcache_provider import TOKENS, IPCCacheServerKey, LMCache, Server

from kvproof.suites.store.contents import content, key

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BLOCK = 4
"""Tokens; a chunk has four."""
EACH = TOKENS // BLOCK
CHUNKS = 8
BLOCKS = 80
WINDOWS = ((-1,), (-1, 32), (-1, 16, 48), (-1, -1), (16,), (-1, 64, 16))
"""Of the groups of a model, in tokens."""


class Model:
    """An engine with its own pages beside what LMCache must have of its sequences."""

    def __init__(self, server: Server, windows: tuple[int, ...], dice: random.Random) -> None:
        self.server, self.windows, self.dice = server, windows, dice
        tensors = [
            torch.zeros((BLOCKS, BLOCK, 4 + 4 * n), dtype=torch.bfloat16)
            for n in range(len(windows))
        ]
        server.register(1, tensors, windows)
        self.pages = [each.view(torch.uint8).view(BLOCKS, -1) for each in tensors]
        first = [dice.randrange(100) for _ in range(CHUNKS * TOKENS)]
        forks = [dice.randrange(CHUNKS * TOKENS) for _ in range(6)]
        self.sequences = [
            (*first[:fork], *(dice.randrange(100) for _ in first[fork:])) for fork in forks
        ]
        entry = server.transfer.context_entries_snapshot()[1].cache_context
        self.parts = [*entry.kv_layer_groups_manager.get_attn_desc().num_chunks_in_sw]
        assert sorted(self.parts) == sorted({self.part(window) for window in windows})
        self.there: set[tuple[int, str, tuple[int, ...]]] = set()
        self.seen: Counter[str] = Counter()

    @staticmethod
    def part(window: int) -> int:
        """Chunks that a window needs: groups of equally many are in one object."""
        return -1 if window < 0 else window // TOKENS

    def run(self, operations: int) -> None:
        for number in range(operations):
            name, salt = f"request-{number}", self.dice.choice(("", "", "other tenant"))
            tokens = self.dice.choice(self.sequences)
            verb = self.dice.choice((self.store, self.store, self.look, self.look, self.drop))
            verb(name, salt, tokens)
            self.server.settle()
            self.server.lookup.end_session(name)

    def key(self, request, salt, tokens, start, end, *, worker=0):
        """Chunks `start` to `end`; tokens beyond them are of no account."""
        tokens = [*tokens, *range(self.dice.randrange(TOKENS))]
        return IPCCacheServerKey.from_token_ids(
            "model", 1, worker, tokens, start * TOKENS, end * TOKENS, request, salt
        )

    def content(self, group, salt, tokens, block):
        """What the attention of a group has in one block: it follows from all tokens before."""
        told = repr((group, salt, tokens[: (block + 1) * BLOCK])).encode()
        data = hashlib.shake_128(told).digest(self.pages[group].shape[1])
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def store(self, request, salt, tokens) -> None:
        start = self.dice.randrange(CHUNKS)
        end = self.dice.randint(start + 1, CHUNKS)
        left = {part: self.left(part, start, end) for part in self.parts}
        ids = [self.computed(g, salt, tokens, start, end, left) for g in range(len(self.windows))]
        _, whole, stored = self.server.transfer.store_with_chunk_mask(
            self.key(request, salt, tokens, start, end), 1, ids, self.server.event
        )
        assert whole
        for at in range(start, end):
            now = {(part, salt, tokens[: (at + 1) * TOKENS]) for part in self.parts}
            new = {each for each in now if at not in left[each[0]]}
            assert stored[at - start] == (new == now and not new & self.there)
            self.there |= new
        self.seen["stored"] += 1

    def left(self, part, start, end):
        """Chunks of which a window has no blocks any more: all null, they must not be stored."""
        some = range(start, end) if part >= 0 and self.dice.random() < 0.3 else ()
        return {at for at in some if self.dice.random() < 0.5}

    def computed(self, group, salt, tokens, start, end, left):
        free = self.dice.sample(range(1, BLOCKS), (end - start) * EACH)
        for at, block in enumerate(free):
            self.pages[group][block] = self.content(group, salt, tokens, start * EACH + at)
        null = left[self.part(self.windows[group])]
        return [0 if start + at // EACH in null else block for at, block in enumerate(free)]

    def hit(self, salt, tokens, most) -> int:
        """The longest prefix of which every group has what its window needs."""

        def serves(length: int) -> bool:
            return all(
                (part, salt, tokens[: (at + 1) * TOKENS]) in self.there
                for part in self.parts
                for at in range(0 if part < 0 else max(0, length - part), length)
            )

        return max(filter(serves, range(most + 1)))

    def look(self, request, salt, tokens) -> None:
        most = self.dice.randint(1, CHUNKS)
        wanted = self.key(request, salt, tokens, 0, most, worker=None)
        self.server.lookup.lookup(wanted, 1)
        found = self.server.lookup.wait_prefetch_status(request, 20.0)
        assert found == self.hit(salt, tokens, most), (self.windows, most)
        self.seen["missed"] += not found
        if found:
            self.retrieve(request, salt, tokens, found)

    def retrieve(self, request, salt, tokens, hit) -> None:
        """From some chunk on: an engine that has the first ones gives their locks back."""
        start = self.dice.choice((0, 0, self.dice.randrange(hit)))
        skip = self.dice.choice((0, self.dice.randint(0, (hit - start) * EACH)))
        ids = [self.dice.sample(range(1, BLOCKS), (hit - start) * EACH) for _ in self.windows]
        for pages in self.pages:
            pages[:] = 0xCD
        _, whole = self.server.transfer.retrieve(
            self.key(request, salt, tokens, start, hit),
            1,
            [[*each] for each in ids],
            self.server.event,
            skip_first_n_tokens=skip * BLOCK,
        )
        assert whole
        for group, window in enumerate(self.windows):
            first = start if window < 0 else max(start, hit - window // TOKENS)
            expected = torch.full_like(self.pages[group], 0xCD)
            for block in range(max(first * EACH, start * EACH + skip), hit * EACH):
                place = ids[group][block - start * EACH]
                expected[place] = self.content(group, salt, tokens, block)
            assert torch.equal(self.pages[group], expected)
        if start:
            early = self.key(request, salt, tokens, 0, start, worker=None)
            self.server.lookup.free_lookup_locks(early, 1)
        self.seen["hit"] += 1
        self.seen["started later"] += start > 0
        self.seen["with gaps"] += any(
            (part, salt, tokens[: (at + 1) * TOKENS]) not in self.there
            for part in self.parts
            for at in range(hit)
        )

    def drop(self, request, salt, tokens) -> None:
        at, number = self.dice.randrange(CHUNKS), self.dice.randrange(len(self.parts))
        named = self.key(request, salt, tokens, 0, at + 1)
        (objects,) = self.server.context.resolve_obj_keys(named, [number])
        deleted, locked = self.server.storage.delete_l1_keys(objects[-1:])
        wanted = (self.parts[number], salt, tokens[: (at + 1) * TOKENS])
        assert (deleted, locked) == (wanted in self.there, 0)
        self.there.discard(wanted)
        self.seen["dropped"] += deleted


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_hits_and_bytes_are_exact_for_prefixes(windows):
    server = Server(capacity=64 << 20, eviction="noop")
    try:
        model = Model(server, windows, random.Random(str(windows)))
        model.run(400)
        assert server.status()["total_object_count"] == len(model.there)
    finally:
        server.close()
    gaps = ["with gaps"] * (max(windows) > 0)
    wanted = ["stored", "missed", "hit", "started later", "dropped", *gaps]
    assert min(model.seen[situation] for situation in wanted) > 0, model.seen


def test_engines_in_threads_of_their_own_read_right_bytes():
    """LMCache serves its engines from a pool of threads."""
    provider = LMCache()

    def work(number: int) -> Counter[str]:
        client, dice = provider.clients[number], random.Random(number)
        seen: Counter[str] = Counter()
        for _ in range(150):
            name = key(dice.randrange(8))
            verb = dice.choice(("store", "store", "read", "read", "read", "drop"))
            if verb == "store":
                client.store({name: content(name, 3000)})
            elif verb == "drop":
                client.drop([name])
            else:
                (view,) = client.acquire([name]).views
                assert view in (None, content(name, 3000))
                seen["read"] += view is not None
        return seen

    try:
        with ThreadPoolExecutor(len(provider.clients)) as threads:
            seen = sum(threads.map(work, range(len(provider.clients))), Counter())
        provider.server.settle()
        assert seen["read"] > 30
    finally:
        provider.close()
