"""The history of routed experts, and a model that keeps a row for every text.

The experts of a token are a function of the text up to it and of the request that computed it: a
model routes equal text otherwise in another batch. So the right row of every position is known; the
model tracks which rows were recorded, and whose. Units are named by the text up to their end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.cache.routed_experts import ExpertFormat, ExpertHistory, ExpertStore
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.routed_experts.index import Index, Node

Rows: TypeAlias = npt.NDArray[np.int64]
OF_LIVE = ("compute", "verify", "ask", "keep", "unfit")
"""Verbs of a running request; without it they are ignored."""


@dataclass
class Request:
    """A running request."""

    text: str
    number: int
    """One of each request: its rows differ from those of equal requests."""
    history: ExpertHistory
    node: Node
    """End of its hit and of its indexed units; nodes up to there are not trimmed."""
    recorded: dict[int, bool] = field(default_factory=dict)
    """Position -> whether a row came with it, for every token computed."""

    @property
    def path(self) -> list[Node]:
        return self.node.path()


class RoutedExpertsMachine:
    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.coverage = coverage
        self.unit: int = config["unit"]
        self.form = ExpertFormat(config["experts"], config["layers"], config["ranks"], self.unit)
        self.store = ExpertStore(self.form)
        self.index = Index(self._split)
        self.known: dict[str, int] = {}
        """Text whose last unit has rows -> number of the request that computed them."""
        self.requests: dict[str, Request] = {}
        self.arrived = 0
        self.trimmed = False
        small = np.iinfo(self.form.dtype).max
        most = 255 if config["experts"] <= 256 else 65535
        coverage.equal("expert_ids_are_small_integers", small, most, "the largest id is")
        coverage.event("ids of one byte", config["experts"] <= 256)
        coverage.event("ids of two bytes", config["experts"] > 256)

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and compare everything (see `Machine`)."""
        if verb in OF_LIVE:
            live = self.requests.get(arguments.pop("request"))
            answer = None if live is None else getattr(self, verb)(live, **arguments)
        else:
            answer = getattr(self, verb)(**arguments)
        if answer is not None:
            self._check_store(verb)
        return answer

    # --- requests ---

    def arrive(self, request: str, text: str, *, require: bool) -> object:
        if request in self.requests:
            return None
        units = self._units(text)[: (len(text) - 1) // self.unit]
        node, inside, matched = self.index.match(units)
        hit = self._limited(node, inside, matched, text) if require else matched
        node = self.index.insert(units[:hit])
        history = ExpertHistory(self.form, hit * self.unit)
        self.arrived += 1
        self.requests[request] = Request(text, self.arrived, history, node)
        return hit

    def _limited(self, node: Node, inside: int, matched: int, text: str) -> int:
        path = [(n, len(n.units)) for n in node.path()[:-1]] + [(node, inside)]
        found = self.store.first_missing(path if matched else [])
        ends = range(self.unit, matched * self.unit + 1, self.unit)
        expected = next((i for i, e in enumerate(ends) if text[:e] not in self.known), matched)
        rows = f"units of {text!r} with rows:"
        self.coverage.equal("the_first_missing_expert_row_is_found", found, expected, rows)
        self.coverage.event("a hit ends before missing rows", expected < matched)
        self.coverage.event("a hit ends inside a node", 0 < inside < len(node.units))
        return expected

    def compute(self, live: Request, count: int, *, record: bool) -> object:
        """Compute tokens, with or without rows."""
        if live.history.length + count > len(live.text):
            return None
        start = live.history.length
        self._append(live, count, record=record)
        return [start, start + count]

    def _append(self, live: Request, count: int, *, record: bool, text: str = "") -> None:
        start = live.history.length
        numbers = [live.number] * count
        rows = self._truth(text or live.text, start, numbers) if record else None
        live.history.append(start, count, rows)
        live.recorded |= dict.fromkeys(range(start, start + count), record)

    def verify(self, live: Request, drafts: str, accepted: int, *, record: bool) -> object:
        """Compute the rest of the text and then drafts; the accepted ones extend the text."""
        start, accepted = len(live.text), min(accepted, len(drafts))
        self._append(live, start - live.history.length, record=record)
        self._append(live, len(drafts), record=record, text=live.text + drafts)
        live.history.truncate(start + accepted)
        live.text += drafts[:accepted]
        live.recorded = {p: known for p, known in live.recorded.items() if p < start + accepted}
        self.coverage.event("a draft is rejected", accepted < len(drafts))
        self.coverage.event(
            "drafts are rejected across a unit border",
            (start + accepted) // self.unit < (start + len(drafts)) // self.unit,
        )
        self._check_returned(live, "expert_rows_roll_back_with_drafts")
        return accepted

    def ask(self, live: Request) -> object:
        """Return the rows of a request, as its client would get them."""
        return self._check_returned(live, "returned_expert_rows_are_right")

    def finish(self, request: str) -> object:
        return None if self.requests.pop(request, None) is None else "finished"

    def serve(self, request: str, text: str, *, require: bool, record: bool) -> object:
        hit = self.arrive(request, text, require=require)
        if hit is not None:
            live = self.requests[request]
            self.compute(live, len(text) - live.history.length, record=record)
            self.keep(live)
            self.ask(live)
            self.finish(request)
        return hit

    # --- index ---

    def keep(self, live: Request) -> object:
        units = self._units(live.text[: live.history.length])
        sizes = {node: len(node.units) for node in self.index.nodes() if self._has_rows(node)}
        live.node = self.index.insert(units)
        size = sizes.get(live.node)
        self.coverage.event("a node with rows grows", size and size < len(live.node.units))
        first = 0
        for node in live.path:
            last = first + len(node.units)
            start = max(first * self.unit, live.history.hit)
            if start < last * self.unit:
                self._fill(live, node, start // self.unit - first, start, last * self.unit)
            first = last
        return len(units)

    def _fill(self, live: Request, node: Node, first: int, start: int, stop: int) -> None:
        ends = range(start + self.unit, stop + 1, self.unit)
        complete = [
            live.text[:end]
            for end in ends
            if all(map(live.recorded.get, range(end - self.unit, end)))
        ]
        new = [text for text in complete if text not in self.known]
        self.known.update(dict.fromkeys(new, live.number))
        filled = live.history.index(self.store, node, first, start, stop)
        self.coverage.equal(
            "gaps_in_expert_rows_are_filled", filled, len(new), "units that took rows:"
        )
        self.coverage.event("a gap is filled", new and len(new) < len(ends))
        self.coverage.event("a unit with rows is computed again", len(new) < len(complete))

    def evict(self, which: int, count: int) -> object:
        """Take units from the end of a leaf that no request holds."""
        held = {node for live in self.requests.values() for node in live.path}
        idle = [leaf for leaf in self.index.leaves() if leaf not in held]
        if not idle:
            return None
        leaf = idle[which % len(idle)]
        for _ in range(min(count, len(leaf.units))):
            text = "".join(unit for node in leaf.path() for unit in node.units)
            self.coverage.event("rows are evicted", text in self.known)
            self.trimmed |= text in self.known
            self.known.pop(text, None)
            self.index.trim(leaf)
        self.store.keep(leaf, len(leaf.units))
        return len(leaf.units)

    def reset(self) -> object:
        """Begin a new epoch; requests end before it."""
        self.coverage.event("a reset of recorded rows", self.known)
        self.requests.clear()
        self.store.clear()
        self.index = Index(self._split)
        self.known.clear()
        self.trimmed = False
        self.coverage.equal(
            "no_expert_rows_across_epochs",
            self.store.num_units,
            0,
            "units with rows after a reset:",
        )
        return "reset"

    def _split(self, node: Node, front: Node, count: int) -> None:
        split = self._has_rows(front) or self._has_rows(node)
        self.coverage.event("a node with rows is split", split)
        self.store.move(node, front, count)

    # --- rows that do not fit ---

    def unfit(self, live: Request, kind: str) -> object:
        start = live.history.length
        rows = self._truth(live.text + "zz", start, [live.number] * 2)
        offers: dict[str, Callable[[], object]] = {
            "number": lambda: live.history.append(start, 1, rows),
            "shape": lambda: live.history.append(start, 2, rows[:, :, :-1]),
            "range": lambda: live.history.append(start, 2, rows + self.form.experts),
            "place": lambda: live.history.append(start + 1, 2, rows),
            "type": lambda: live.history.append(start, 2, rows + 0.5),
        }
        refused = False
        try:
            offers[kind]()
        except ValueError:
            refused = True
        self.coverage.check(
            "unfit_expert_rows_are_refused",
            refused and live.history.length == start,
            lambda: f"rows of wrong {kind} at token {start} of {live.text!r} were accepted",
        )
        self.coverage.event(f"unfit: {kind}")
        return kind

    # --- truth ---

    def _truth(self, text: str, start: int, numbers: Sequence[int]) -> Rows:
        """Return the rows of a text from `start` on, each as computed by the request `number`."""
        size = self.form.layers * self.form.ranks
        ends = enumerate(numbers, start + 1)
        seeds = [(zlib.crc32(text[:end].encode()) >> 3) + number for end, number in ends]
        rows = [[seed * (i + 1) + i for i in range(size)] for seed in seeds]
        shape = (len(numbers), self.form.layers, self.form.ranks)
        return np.array(rows, np.int64).reshape(shape) % self.form.experts

    def _check_returned(self, live: Request, prop: str) -> object:
        total = live.history.length + 1
        place = [(node, len(node.units)) for node in live.path]
        found = live.history.recorded(total, self.store, place)
        text = live.text + "?"
        rows = f"rows of {total} tokens:"
        self.coverage.equal(
            "expert_rows_cover_all_tokens_but_the_last", len(found.rows), total - 1, rows
        )
        missing = {p for start, stop in found.missing for p in range(start, stop)}
        expected = {p for p in range(total - 1) if not self._is_known(live, p)}
        truth = self._truth(text, 0, [self._whose(live, p) for p in range(total - 1)])
        truth[sorted(expected)] = 0
        wrong = np.flatnonzero((found.rows != truth).any(axis=(1, 2))).tolist()
        self.coverage.check(prop, not wrong, lambda: f"rows {wrong} of {text!r} are not its own")
        self.coverage.equal("unrecorded_expert_rows_are_named", missing, expected, "missing rows:")
        self._note_returned(live, expected)
        return list(found.missing)

    def _is_known(self, live: Request, position: int) -> bool:
        """A row of the hit is known if any request has recorded it so far."""
        if position < live.history.hit:
            return live.text[: self._end(position)] in self.known
        return live.recorded[position]

    def _whose(self, live: Request, position: int) -> int:
        if position < live.history.hit:
            return self.known.get(live.text[: self._end(position)], 0)
        return live.number

    def _note_returned(self, live: Request, missing: set[int]) -> None:
        hit = live.history.hit
        returned = [p for p in range(live.history.length) if p not in missing]
        over = any(p < hit for p in returned)
        self.coverage.event("rows are returned over a hit", over)
        self.coverage.event("rows are returned after an eviction", over and self.trimmed)
        self.coverage.event("rows are missing in a hit", any(p < hit for p in missing))
        self.coverage.event("rows are missing in a step", any(p >= hit for p in missing))
        generated = any(live.text[p] == "!" for p in returned)
        self.coverage.event("rows of generated tokens are returned", generated)

    # --- the store ---

    def _check_store(self, verb: str) -> None:
        count = 0
        for leaf in self.index.leaves():
            path = leaf.path()
            text = "".join(unit for node in path for unit in node.units)
            into = self.form.empty(len(text))
            known = self.store.read([(node, len(node.units)) for node in path], into)
            expected = [text[: self._end(p)] in self.known for p in range(len(text))]
            self.coverage.check(
                "expert_rows_move_with_their_blocks",
                known.tolist() == expected,
                lambda text=text: f"after {verb}, other units of {text!r} have rows than before",  # type: ignore[misc] # bound per iteration
            )
            whose = [self.known.get(text[: self._end(p)], 0) for p in range(len(text))]
            truth = self._truth(text, 0, whose)
            self.coverage.check(
                "expert_rows_move_with_their_blocks",
                (into == truth)[known].all(),
                lambda text=text: f"after {verb}, units of {text!r} have rows of others",  # type: ignore[misc] # bound per iteration
            )
        count = self.store.num_units
        units = f"after {verb}, units with rows:"
        self.coverage.equal("expert_rows_move_with_their_blocks", count, len(self.known), units)

    def _has_rows(self, node: Node) -> bool:
        above = "".join(unit for each in node.path()[:-1] for unit in each.units)
        _, *ends = accumulate(node.units, initial=above)
        return not self.known.keys().isdisjoint(ends)

    def _units(self, text: str) -> list[str]:
        full = len(text) // self.unit * self.unit
        return [text[i : i + self.unit] for i in range(0, full, self.unit)]

    def _end(self, position: int) -> int:
        return (position // self.unit + 1) * self.unit
