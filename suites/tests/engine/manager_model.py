"""A plain model of a manager with any groups: what is in every block, and what a hit may reuse.

It knows tokens and the tables that it was shown, nothing of nodes, runs or orders. A block belongs
to the prefix that a step has computed into it until the block is free or handed out again.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

import numpy as np

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Refusal


class Known:
    """A request as its user knows it."""

    def __init__(self, tokens, spans, epoch):
        self.tokens, self.spans, self.epoch = list(tokens), tuple(spans), epoch
        self.indexed = 0

    def prefix(self, end):
        return tuple(self.tokens[:end]), tuple(s for s in self.spans if s.start < end)


class Running(NamedTuple):
    """A step in flight."""

    step: int
    name: str
    known: Known
    answer: object
    drafts: int
    tables: list
    touched: set


class CheckedManager:
    """A manager, and what must be true of it; every method checks and then acts on both."""

    def __init__(self, config):
        self.manager = CacheManager(config)
        self.groups = config.layout.groups
        self.unit = config.layout.unit
        self.shared = config.state_pool == "shared"
        self.manager.eviction.on_evicted.append(self._drop)
        self.steps, self.known = [], {}
        self.content = {}
        """Block or row -> (group, prefix) last written."""
        self.owner, self.where, self.checkpoints = {}, {}, {}
        self.hits = self.cut = self.refusals = 0
        """Lengths above 0, those of them below what full attention has, and refused requests."""

    # --- what a hit may be (X1, X2, X3, M2, S1) ---

    def first_seen(self, group, tokens):
        """First unit that computing position `tokens` sees."""
        if group.kind == "full":
            return 0
        if group.kind == "window":
            return max(0, tokens - group.size + 1) // self.unit
        return next(p for p in count() if p // group.size == tokens // group.size) // self.unit

    def resident(self, index, known, unit):
        key = index, known.prefix((unit + 1) * self.unit)
        return all(self.owner.get(block) == key for block in self.where.get(key, (0,)))

    def holds(self, index, known, units):
        """Tell whether a group has all that position `units * unit` sees."""
        group = self.groups[index]
        if group.kind == "state":
            return known.prefix(units * self.unit) in self.checkpoints
        first = self.first_seen(group, units * self.unit)
        return all(self.resident(index, known, unit) for unit in range(first, units))

    def longest_hit(self, tokens, spans=()):
        """Try every length. A path without blocks is not seen, so full attention is needed."""
        if all(group.kind != "full" for group in self.groups):
            return self.manager.lookup(tokens, spans=spans)
        known = Known(tokens, spans, 0)
        most = (len(tokens) - 1) // self.unit
        full = [g for g, group in enumerate(self.groups) if group.kind == "full"]
        cached = [all(self.resident(g, known, unit) for g in full) for unit in range(most)]
        limit = (*cached, False).index(False)
        units = max(n for n in range(limit + 1) if not n or self.valid(known, n, limit))
        self.hits, self.cut = self.hits + (units > 0), self.cut + (units < limit)
        return units * self.unit

    def valid(self, known, units, limit):
        inside = any(s.start < units * self.unit < s.start + s.length for s in known.spans)
        return not inside and all(
            units + ahead <= limit and self.holds(g, known, units + ahead)
            for g, group in enumerate(self.groups)
            for ahead in range(1 + (group.draft and group.kind != "state"))
        )

    # --- verbs ---

    def admit(self, name, tokens, spans=(), compute=None):
        expected = self.longest_hit(tokens, spans)
        assert self.manager.lookup(tokens, spans=spans) == expected
        step = self.manager.begin_step()
        answer = self.manager.admit(name, tokens, spans=spans, compute=compute)
        if isinstance(answer, Refusal):
            return self._refused(step)
        given_up = self.manager.states is not None and answer.hit == 0
        assert answer.hit == expected or given_up, "only a hit that needs a state may be given up"
        self.known[name] = known = Known(tokens, spans, self.manager.epoch)
        known.indexed = answer.hit // self.unit
        return self._schedule(step, name, answer, 0, answer.hit // self.unit)

    def extend(self, name, tokens, drafts=(), compute=None):
        known = self.known[name]
        room = self._rooms(name)
        step = self.manager.begin_step()
        answer = self.manager.extend(name, tokens, drafts=drafts, compute=compute)
        if isinstance(answer, Refusal):
            return self._refused(step)
        known.tokens += [*tokens, *drafts]
        return self._schedule(step, name, answer, len(drafts), room)

    def _refused(self, step):
        self.manager.end_step(step)
        self.refusals += 1

    def _rooms(self, name):
        return self.manager.live[name].units

    def _schedule(self, step, name, answer, drafts, room):
        tables = self._by_unit(name)
        new = {block for table in tables for row in table[room:] for block in row}
        mine = {
            block
            for group, table in zip(self.groups, tables, strict=True)
            for row in table[self.first_seen(group, answer.start) if table else 0 :]
            for block in row
        }
        use = answer.state
        if use:
            first = not use.read or use.restore
            ids = [use.writes[0][1]] if first else []
            ids += [place for _, place in (*use.writes[1:], *use.saves)]
            new |= {self._place(block) for place in ids for block in place}
            mine |= new | {self._place(block) for block in use.writes[0][1]}
            mine |= {self._place(block) for block in (use.restore[0] if use.restore else ())}
        for other in self.steps:
            assert not new & other.touched, f"handed out under step {other.step} (B6)"
        for block in new:
            self.owner.pop(block, None)
        self.steps.append(Running(step, name, self.known[name], answer, drafts, tables, mine))
        self.settle()

    def _by_unit(self, name):
        """Tables as ids of each unit; none for states."""
        rows = []
        for group, table in zip(self.groups, self.manager.tables(name), strict=True):
            if group.kind == "state":
                rows.append([])
                continue
            ratio = self.unit // group.block_size
            rows.append([tuple(row) for row in np.reshape(table, (-1, ratio)).tolist()])
        return rows

    def _place(self, block):
        return block if self.shared else ("row", block)

    def end(self, accepted=None):
        run = self.steps.pop(0)
        self._compute(run)
        kept = {} if accepted is None else {run.name: accepted}
        alive = self.manager.live.get(run.name) is not None and self.known[run.name] is run.known
        self.manager.end_step(run.step, accepted=kept)
        stop = run.answer.stop
        if run.drafts:
            stop -= run.drafts - (run.drafts if accepted is None else accepted)
            del run.known.tokens[stop:]
        if alive and run.known.epoch == self.manager.epoch:
            self._index(run, stop)
        self.settle()

    def release(self, name):
        self.manager.release(name)
        self.settle()

    def reset(self):
        self.manager.reset()
        self.owner.clear()
        self.checkpoints.clear()

    def settle(self):
        """Blocks that are free belong to nobody any more."""
        for block in self.manager.pool.free_ids():
            self.owner.pop(block, None)
        usage = self.manager.usage()
        assert min(usage) >= 0
        assert sum(usage) == self.manager.pool.num_blocks - 1

    # --- what a step reads and writes (S4, X5) ---

    def _compute(self, run):
        start, stop = run.answer.start, run.answer.stop
        for index, table in enumerate(run.tables):
            if not table:
                continue
            for unit in range(self.first_seen(self.groups[index], start), -(-stop // self.unit)):
                end = (unit + 1) * self.unit
                for block in table[unit]:
                    if unit * self.unit < start:
                        self._read(run, index, block, min(start, end))
                    self.content[block] = index, *run.known.prefix(min(stop, end))
        if run.answer.state:
            self._compute_state(run, run.answer.state)

    def _read(self, run, index, block, end):
        group, tokens, spans = self.content[block]
        found = group, tokens[:end], tuple(s for s in spans if s.start < end)
        assert found == (index, *run.known.prefix(end)), f"{run.name} reads block {block}"

    def _compute_state(self, run, use):
        content, place = self.content, self._place
        for source, target in zip(*use.restore, strict=True) if use.restore else ():
            content[place(target)] = content[place(source)]
        for block in use.read:
            assert content[place(block)] == ("state", *run.known.prefix(run.answer.start))
        for tokens, ids in (*use.writes, *use.saves):
            for block in ids:
                content[place(block)] = ("state", *run.known.prefix(tokens))

    # --- what becomes resident, and what leaves ---

    def _index(self, run, stop):
        known, after = run.known, self._by_unit(run.name)
        units = range(known.indexed, stop // self.unit)
        known.indexed = max(known.indexed, stop // self.unit)
        for index, table in enumerate(after):
            for unit in units if table else ():
                ids = table[unit]
                if not any(ids) and not self.resident(index, known, unit):
                    ids = run.tables[index][unit]
                if any(ids):
                    key = index, known.prefix((unit + 1) * self.unit)
                    self.where[key] = ids
                    self.owner.update(dict.fromkeys(ids, key))
        use = run.answer.state
        for tokens, ids in use.saves if use else ():
            self.checkpoints.setdefault(known.prefix(tokens), tuple(ids))

    def _drop(self, group, ids):
        if self.groups[group].kind == "state":
            gone = {*map(int, ids)}
            self.checkpoints = {
                prefix: kept for prefix, kept in self.checkpoints.items() if not gone & {*kept}
            }
