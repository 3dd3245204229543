"""Decisions of the engine: their situations, and whether its options allow them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.engine import properties as seen
from kvproof.suites.reference.engine.properties import SHARED_STEP
from kvproof.suites.reference.engine.tracked_requests import TrackedRequest


class BudgetChecks:
    """Checks an engine's scheduler after each step."""

    def __init__(self, engine: Any, config: Config, coverage: Coverage) -> None:
        self._scheduler = scheduler = engine.scheduler
        self._config, self._coverage = config, coverage
        schedule = scheduler.schedule

        def judged() -> Any:
            known, ready, head = len(scheduler.decisions), self._ready(), scheduler.queue.head()
            planned = schedule()
            decisions = scheduler.decisions[known:]
            self._judge(decisions)
            older = head is not None and bool(ready) and head.rank < ready[0][0]
            if not {"wait", "preempt"} & {decision.verb for decision in decisions}:
                self._turns(decisions, ready, spared=older)
            if older:
                self._serves_older(decisions, head)
            return planned

        scheduler.schedule = judged

    def _ready(self) -> list[tuple[int, int, str]]:
        """Return (rank, newest step, name) of running requests that could compute, oldest first."""
        running = self._scheduler.running.values()
        return sorted((each.rank, each.last_step, each.id) for each in running if each.wanted)

    def _turns(
        self, decisions: Sequence[Any], ready: Sequence[tuple[int, int, str]], *, spared: bool
    ) -> None:
        """The oldest computes; none of the others overtakes one that has waited longer.

        `spared`: a token is kept for an older request that waits.
        """
        computed = {decision.request_id for decision in decisions if decision.verb == "compute"}
        line = sorted((step, rank, name) for rank, step, name in ready[1:])
        served = [name in computed for _, _, name in line]
        first = spared or not ready or ready[0][2] in computed
        if len(ready) > self._config["max_batch_tokens"]:
            self._coverage.event(seen.TURNS)
        self._coverage.check(
            "running_requests_take_turns",
            first and served == sorted(served, reverse=True),
            lambda: f"{sorted(computed)} compute; ready are {ready}: rank, newest step, name",
        )

    def _serves_older(self, decisions: Sequence[Any], head: Any) -> None:
        """A head of the line that is older than all that run gets a token, or finds no room.

        A younger request that waits for room, or computes a whole span, is no excuse. In a step
        that preempts, the line waits.
        """
        place = len(self._scheduler.running) < self._config["max_requests"]
        if place and all(d.verb != "preempt" for d in decisions):
            self._coverage.event(seen.OLDER)
            self._coverage.check(
                "waits_are_bounded",
                any(d.verb in ("admit", "wait") and d.request_id == head.id for d in decisions),
                lambda: f"{head.id} is older than all that run and gets no token of a step",
            )

    def _judge(self, decisions: Sequence[Any]) -> None:
        verbs = [decision.verb for decision in decisions]
        computed = [d.detail[1] - d.detail[0] for d in decisions if d.verb == "compute"]
        left = self._config["max_batch_tokens"] - sum(computed)
        waiting = self._scheduler.queue.head()
        room = len(self._scheduler.running) < self._config["max_requests"]
        self._coverage.check(
            "token_budget_is_used_while_requests_wait",
            left <= 0 or waiting is None or not room or {"wait", "preempt"} & {*verbs},
            lambda: f"a step computes {computed}, {left} tokens are left, {waiting.id} waits",
        )
        hits = [d.detail[0] for d in decisions if d.verb == "admit"]
        self._coverage.event(SHARED_STEP, any(hits[:-1]))


def trace(cache: Any) -> object:
    """Return the state that later decisions may depend on, block ids included."""
    return (
        cache.usage(),
        cache.pool.free_ids().tolist(),
        {name: [table.tolist() for table in cache.tables(name)] for name in cache.live},
        {name: request.computed for name, request in cache.live.items()},
        [(node.start, node.units, node.locks, node.stamp) for node in cache.trie.nodes()],
        (cache.statistics.cumulative, cache.statistics.resumed, cache.statistics.rolling),
    )


class Watch:
    """Reads the decisions of an engine as they are made."""

    def __init__(
        self, engine: Any, config: Config, coverage: Coverage, tracked: dict[str, TrackedRequest]
    ) -> None:
        self._engine, self._config, self._coverage = engine, config, coverage
        self._tracked = tracked
        self._read = 0
        """Number of decisions read so far."""
        self._recent: deque[tuple[int, int]] = deque(maxlen=config["max_requests"])
        """Tokens asked for and hit by the last new requests since a reset (V1)."""
        engine.cache.hooks.reset.append(self._recent.clear)
        self._saved: dict[tuple[Any, ...], str] = {}
        """Saved checkpoints, with their reason: a junction, or decoding."""
        self._guard("admit")
        self._guard("extend")

    # --- refusals of the cache manager ---

    def _guard(self, verb: str) -> None:
        cache, call = self._engine.cache, getattr(self._engine.cache, verb)

        def guarded(wanted: Any, *arguments: Any, **options: Any) -> Any:
            """`wanted` is an AdmitRequest, or the id of a request to extend."""
            admits = verb == "admit"
            name = wanted.id if admits else wanted
            before = trace(cache)
            found = self._lookup(wanted) if admits else 0
            answer = call(wanted, *arguments, **options)
            if not hasattr(answer, "reason"):
                self._started(cache.live[name], answer)
                if admits:
                    self._counted(wanted, answer)
                self._coverage.event(seen.NO_HIT, found and wanted.access.read and not answer.hit)
            else:
                self._coverage.check(
                    "refused_admissions_leave_no_trace",
                    before == trace(cache),
                    lambda: f"{verb} of {name} was refused with {answer}, and something changed",
                )
            return answer

        setattr(cache, verb, guarded)

    def _counted(self, wanted: Any, answer: Any) -> None:
        """The rolling hit rate is that of the last new requests (V1)."""
        cache, recent = self._engine.cache, self._recent
        if cache.config.enable_prefix_caching and wanted.access.read and not wanted.resumed:
            self._coverage.event(seen.ROLLED, len(recent) == recent.maxlen)
            recent.append((len(wanted.tokens), answer.hit))
        rolling = cache.statistics.rolling
        expected = sum(asked for asked, _ in recent), sum(hit for _, hit in recent)
        counted = (rolling.queries, rolling.hits)
        self._coverage.equal(
            "rolling_hit_rates_are_of_the_last_requests", counted, expected, f"after {[*recent]}:"
        )

    def _lookup(self, wanted: Any) -> int:
        """Return the hit of a recurrent request without the room that its own hit takes (C2)."""
        cache = self._engine.cache
        if not cache.config.enable_prefix_caching or cache.states is None:
            return 0
        found: int = cache.lookup(wanted.tokens, namespace=wanted.namespace, spans=wanted.spans)
        return found

    def _started(self, live: Any, answer: Any) -> None:
        """Count the side effects of a step."""
        saw, state = self._coverage.event, answer.state
        saw(seen.ENCODED, answer.encode)
        if state is None:
            return
        space, tokens = self._tracked[live.id].prompt.namespace, bytes(live.tokens)
        for count, _ in state.saves:
            decoded = count > live.prompt
            why = seen.JUNCTION if live.divergence == count else seen.DECODED if decoded else ""
            self._saved.setdefault((space, tokens[: 4 * count]), why)
        if state.restore is not None:
            why = self._saved.get((space, tokens[: 4 * answer.start]), "")
            saw(seen.RESTORED)
            saw(why, why)

    # --- decisions of the scheduler ---

    def waits_for_objects(self) -> bool:
        """Whether a request of the last step waits for objects in transfer (C8)."""
        new = self._engine.decisions()[self._read :]
        return any(d.verb == "wait" and d.detail[0] == "loading" for d in new)

    def follow(self) -> None:
        """Read the decisions since the last call."""
        decisions = self._engine.decisions()[self._read :]
        self._read += len(decisions)
        for verb, name, detail in ((d.verb, d.request_id, d.detail) for d in decisions):
            if name in self._tracked:
                self._coverage.event(seen.WAITED, verb == "wait")
                getattr(self, f"_{verb}", _ignore)(self._tracked[name], *detail)
        self._judge_steps(decisions)
        self._judge_flights()
        config, scheduler = self._engine.config, self._engine.scheduler
        self._coverage.event(seen.SEVERAL, len(scheduler.steps) > 1)
        self._coverage.check(
            "options_reach_their_component",
            len(scheduler.running) <= self._config["max_requests"]
            and sum(map(bool, scheduler.steps.values())) <= self._config["steps_in_flight"],
            lambda: f"{len(scheduler.running)} run in {len(scheduler.steps)} steps under {config}",
        )
        self._coverage.event(
            seen.CROWDED, len(scheduler.running) > self._config["max_batch_tokens"]
        )

    def _judge_flights(self) -> None:
        """Each running request counts the steps that compute it and have not ended."""
        works = [each for step in self._engine.scheduler.steps.values() for each in step]
        found = Counter(each.request.id for each in works if each.current)
        running = self._engine.scheduler.running.values()
        wrong = {r.id: r.in_flight for r in running if r.in_flight != found[r.id]}
        self._coverage.check(
            "steps_in_flight_are_counted_once",
            not wrong,
            lambda: f"requests count {wrong} steps in flight, they are in {dict(found)}",
        )

    def _judge_steps(self, decisions: list[Any]) -> None:
        steps: dict[int, list[Any]] = {}
        for decision in decisions:
            if decision.verb == "compute":
                steps.setdefault(decision.step, []).append(decision)
        for step, computed in steps.items():
            self._judge_budget(step, computed)
            chunks = [d for d in computed if d.detail[1] - d.detail[0] - d.detail[2] > 1]
            self._coverage.event(seen.MIXED, chunks and len(chunks) < len(computed))

    def _judge_budget(self, step: int, computed: list[Any]) -> None:
        counts = [decision.detail[1] - decision.detail[0] for decision in computed]
        longest = max(
            (
                span.length
                for decision in computed
                if decision.request_id in self._tracked
                for span in self._tracked[decision.request_id].prompt.spans
            ),
            default=0,
        )
        most = self._config["max_batch_tokens"] + longest * len(computed)
        drafts = max(decision.detail[2] for decision in computed)
        self._coverage.check(
            "options_reach_their_component",
            min(counts) > 0 and sum(counts) <= most and drafts <= self._config["num_drafts"],
            lambda: f"step {step} computes {counts} with up to {drafts} drafts",
        )

    def _admit(self, tracked: TrackedRequest, hit: int) -> None:
        layout = self._engine.config.cache.layout
        tracked.admissions, tracked.hit, tracked.was_reset = tracked.admissions + 1, hit, False
        tracked.unrecorded, tracked.shared = hit, 0
        tracked.weights = self._engine.scheduler.weights
        tracked.epochs.add(tracked.weights)
        cached = self._config["prefix_caching"] and tracked.prompt.read
        partial = self._config.get("partial_blocks", False)
        self._coverage.check(
            "options_reach_their_component",
            hit == 0 or (cached and (partial or hit % layout.unit == 0)),
            lambda: f"a hit of {hit} tokens, units of {layout.unit}, caching: {cached}",
        )
        if hit:
            tracked.happened.add("cached_equals_uncached")
            self._hit(tracked, hit)

    def _hit(self, tracked: TrackedRequest, hit: int) -> None:
        saw, layout = self._coverage.event, self._engine.config.cache.layout
        local = [g for g in layout.groups if g.kind in ("window", "chunk")]
        saw(seen.HIT)
        saw(seen.INSIDE, hit % layout.unit)
        saw(seen.OWN_BLOCKS, tracked.admissions > 1)
        saw(seen.MEDIA_HIT, any(s.start + s.length <= hit for s in tracked.prompt.spans))
        saw(seen.WINDOW_HIT, any(g.size < hit for g in local))
        saw(seen.COMPRESSED, layout.entry > 1)
        saw(seen.SHARED_OUT, self._config.get("ranks", (1, 1))[0] > 1)
        saw(seen.SIDECAR, any(g.beside is not None for g in layout.groups))
        saw(seen.SCALED, self._config.get("scaled"))

    def _compute(self, tracked: TrackedRequest, _start: int, stop: int, _drafts: int) -> None:
        if stop < len(tracked.prompt.tokens):
            tracked.happened.add("chunked_equals_whole")
            self._coverage.event(seen.CHUNKED)

    def _judge(self, tracked: TrackedRequest, accepted: int, drafts: int, stop: int) -> None:
        tracked.happened.add("drafted_equals_undrafted")
        unit = self._engine.config.cache.layout.unit
        self._coverage.event(seen.ACCEPTED, accepted)
        self._coverage.event(seen.REJECTED, accepted < drafts)
        self._coverage.event(seen.BORDER, (stop - drafts + accepted) // unit < (stop - 1) // unit)

    def _preempt(
        self, tracked: TrackedRequest, reason: str, _computed: int, in_flight: int
    ) -> None:
        tracked.happened.add("preempted_equals_undisturbed")
        self._coverage.event(seen.IN_FLIGHT, in_flight)
        self._coverage.event(seen.PREEMPTED, reason != "asked")


def _ignore(*_: Any) -> None:
    """Needs no check."""
