"""The engine, its twin, and the expected answer of every request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.engine import properties as seen
from kvproof.suites.reference.engine.fault_injection import damage
from kvproof.suites.reference.engine.judge import AnswerChecker
from kvproof.suites.reference.engine.observer import BudgetChecks, Watch, trace
from kvproof.suites.reference.engine.subject import Subject
from kvproof.suites.reference.engine.tier_checks import TierChecks
from kvproof.suites.reference.engine.tracked_requests import Prompt, TrackedRequest

MOST_UNITS = 6
"""Units of the longest prompt."""
MOST_CALLS = 5000
"""Steps after which `drain` gives up; `waits_are_bounded` fails long before."""


class EngineMachine:
    """Applies each operation to the engine, and to a twin of it if the configuration has one."""

    def __init__(
        self, config: Config, coverage: Coverage, package: str = "kvproof.reference"
    ) -> None:
        self.config = config
        self.subject = Subject(package)
        self.engine = self.subject.build(config)
        self.twin = self.subject.build(config, ranks=(1, 1)) if config["twin"] else None
        self.tracked: dict[str, TrackedRequest] = {}
        """Requests under way, and those outside of the engine."""
        self.prompts: list[tuple[tuple[int, ...], tuple[Any, ...]]] = []
        """Tokens of all prompts and answers, with their spans, for prompts that begin alike."""
        self.outside: dict[str, list[Any]] = {}
        """Requests moved out, in the form that each engine exported."""
        self.pins: set[str] = set()
        self.named = 0
        """Number of requests so far."""
        layout = self.engine.config.cache.layout
        self.unit = layout.unit
        self.recurrent = self.engine.cache.states is not None
        self.most_tokens = _most_tokens(config, layout)
        self._coverage = coverage
        self._judge = AnswerChecker(self.subject, config, coverage)
        self._watch = Watch(self.engine, config, coverage, self.tracked)
        BudgetChecks(self.engine, config, coverage)
        scaled = config.get("scaled", ())
        self._tier_checks = TierChecks(self.engine, coverage, self.tracked, scaled)

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and judge everything."""
        answer = getattr(self, f"_{verb}")(**arguments)
        self._watch.follow()
        if self.twin:
            same = self.engine.decisions() == self.twin.decisions()
            self._coverage.check(
                "decisions_repeat", same, lambda: _first_difference(self.engine, self.twin)
            )
        return answer

    def _each(self, call: Callable[[Any], Any]) -> list[Any]:
        answers = [call(self.engine)]
        return [*answers, call(self.twin)] if self.twin else answers

    def preempted(self) -> list[str]:
        requests = self.engine.scheduler.requests.values()
        return [request.id for request in requests if request.status == "preempted"]

    def runs_on_a_hit(self) -> bool:
        return any(self.tracked[name].hit for name in self.engine.scheduler.running)

    def moves_within_weights(self) -> bool:
        """Whether some request is outside, all of the present weights, where all may be shared."""
        groups, weights = self.config["groups"], self.engine.scheduler.weights
        return (
            bool(self.outside)
            and all(group["kind"] == "full" for group in groups)
            and all(self.tracked[name].weights == weights for name in self.outside)
        )

    # --- verbs ---

    def _add(self, name: str, tokens: list[int], new: int, **rest: Any) -> object:
        if name in self.tracked:
            return None
        self.named += 1
        prompt = Prompt(
            tuple(tokens),
            new,
            self.subject.namespace(rest.get("salt")),
            self.subject.spans(rest.get("spans", [])),
            rest.get("read", True),
            rest.get("store", True),
        )
        self._tier_checks.asks(prompt.tokens, prompt.namespace)
        refusal = self._each(lambda engine: _submit(engine, name, prompt))[0]
        self._coverage.event(seen.REFUSED, refusal)
        self._judge.arrival(prompt, refusal)
        if refusal is None:
            self.tracked[name] = TrackedRequest(prompt, self._allowance(len(tokens) + new))
            self.prompts.append((prompt.tokens, prompt.spans))
        return refusal

    def _allowance(self, own: int) -> int:
        inside = [
            tracked.most_tokens for name, tracked in self.tracked.items() if self._serves(name)
        ]
        return self._steps_for(own + sum(inside))

    def _serves(self, name: str) -> bool:
        return name in self.engine.scheduler.requests

    def _steps_for(self, tokens: int) -> int:
        steps: int = 2 * (self.config["steps_in_flight"] + 1) * tokens
        return steps

    def _step(self, count: int = 1) -> object:
        finished = []
        for _ in range(count):
            outputs = self._together(lambda engine: engine.step())
            finished += outputs
            self._took_a_step()
            self._answered(outputs)
        return [(output.request_id, len(output.tokens)) for output in finished]

    def _together(self, call: Callable[[Any], Any]) -> Any:
        """Return the outputs of the engine, which are those of its twin."""
        outputs, *others = self._each(call)
        for other in others:
            self._same(outputs, other)
        return outputs

    def _answered(self, outputs: Any) -> None:
        self._watch.follow()
        for output in outputs:
            self._judge.output(self.tracked[output.request_id], output, self._drafts(output))
            self._finish(output)

    def _same(self, outputs: Any, other: Any) -> None:
        self._coverage.check(
            "decisions_repeat", str(outputs) == str(other), lambda: f"{outputs} and {other}"
        )

    def _drafts(self, output: Any) -> tuple[int, ...]:
        request = self.engine.scheduler.requests.get(output.request_id)
        return request.drafts if request else ()

    def _finish(self, output: Any) -> None:
        if output.done:
            tracked = self.tracked.pop(output.request_id)
            self.prompts.append(((*tracked.prompt.tokens, *tracked.answer), tracked.prompt.spans))
            self._judge.whole(tracked, output.experts)

    def _took_a_step(self) -> None:
        self._coverage.check(
            "something_runs_while_work_is_left",
            not self.engine.stuck or self.pins,
            lambda: f"nothing runs, but {sorted(self.engine.scheduler.requests)} are left",
        )
        served = [] if self.pins else [name for name in self.tracked if self._serves(name)]
        for name in served:
            self.tracked[name].allowance -= not self._watch.waits_for_objects()
        late = [name for name in served if self.tracked[name].allowance < 0]
        if served:
            self._coverage.check(
                "waits_are_bounded",
                not late,
                lambda: f"{late} have had all the steps they may take",
            )

    def _cancel(self, name: str) -> object:
        request = self.engine.scheduler.requests.get(name)
        if request is not None:
            self._coverage.event(seen.CANCELLED[request.status])
            self._coverage.event(seen.CANCELLED_IN_FLIGHT, request.in_flight)
        known = self._each(lambda engine: engine.cancel(name))[0]
        before = trace(self.engine.cache)
        again = self._each(lambda engine: engine.cancel(name))[0]
        gone = not self._serves(name) and name not in self.engine.cache.live
        same = before == trace(self.engine.cache)
        self._coverage.check(
            "cancelling_is_safe",
            known == (request is not None) and not again and gone and same,
            lambda: f"cancelled {name}: known {known}, again {again}, gone {gone}, same {same}",
        )
        if name not in self.outside:
            self.tracked.pop(name, None)
        return known

    def _preempt(self, name: str) -> None:
        if name not in self.engine.scheduler.running:
            return
        self._coverage.event(seen.FORCED)
        self._each(lambda engine: engine.scheduler.preempt(engine.scheduler.running[name]))
        for other, tracked in self.tracked.items():
            if self._serves(other):
                tracked.allowance += self._steps_for(self.tracked[name].most_tokens)

    def _evict(self, count: int) -> int:
        evicted: list[int] = self._each(lambda engine: engine.cache.evict(count))[0]
        return len(evicted)

    def _reset(self) -> None:
        self._coverage.event(seen.RESET, self.engine.scheduler.running)
        self._tier_checks.resets()
        self._each(lambda engine: engine.reset())
        for tracked in self.tracked.values():
            tracked.was_reset = True

    def _pin(self, name: str, tokens: list[int]) -> object:
        held = self._each(lambda engine: engine.cache.pin(name, tokens))[0]
        self._coverage.event(seen.PINNED, held)
        if held:
            self.pins.add(name)
        return held

    def _unpin(self, name: str) -> None:
        self._each(lambda engine: engine.cache.unpin(name))
        self.pins.discard(name)

    def _trouble(self, late: int, lose: str, *, spoil: bool) -> None:
        """Delay objects from now on, lose some of the next fetch, and damage a file."""
        engines = [each for each in (self.engine, self.twin) if each is not None and each.tiers]
        for engine in engines:
            engine.tiers.source.late, engine.tiers.source.lose = late, lose
        spoilt = [damage(engine) for engine in engines if spoil]
        self._coverage.event(seen.DAMAGED, any(spoilt))

    # --- sleep (Q6) ---

    def _sleep(self, steps: int, *, keep: bool) -> object:
        """Let the engine sleep for some steps."""
        running = [*self.engine.scheduler.running]
        outputs = self._together(lambda engine: engine.sleep(keep=keep))
        self._answered(outputs)
        slept = [name for name in running if name in self.tracked]
        self._coverage.event(seen.SLEPT if keep else seen.DROPPED, slept)
        self._coverage.event(seen.SCALED_SLEPT, keep and slept and self.config.get("scaled"))
        if not keep:
            self._forgot(slept)
        known, computed = len(self.engine.decisions()), self.engine.model.computed
        found = [self._together(lambda engine: engine.step()) for _ in range(steps)]
        self._coverage.check(
            "a_sleeping_engine_computes_nothing",
            not any(found) and self._rested(known, computed),
            lambda: f"{found} while asleep, and {self.engine.decisions()[known:]}",
        )
        self._each(lambda engine: engine.wake())
        self._coverage.check(
            "sleep_keeps_or_drops_content_as_it_says",
            not keep or all(name in self.engine.scheduler.running for name in slept),
            lambda: (
                f"of {slept}, {[*self.engine.scheduler.running]} run after a sleep with content"
            ),
        )
        for name in slept:
            self.tracked[name].happened.add("sleep_keeps_or_drops_content_as_it_says")
        return [output.request_id for output in outputs]

    def _rested(self, known: int, computed: int) -> bool:
        return len(self.engine.decisions()) == known and self.engine.model.computed == computed

    def _forgot(self, slept: list[str]) -> None:
        """Nothing is reused, and the requests that ran compute all their tokens again."""
        self._tier_checks.resets()
        again = sum(self.tracked[name].most_tokens for name in slept)
        for tracked in self.tracked.values():
            tracked.allowance += self._steps_for(again)

    # --- moving (C5) ---

    def _take(self, name: str) -> object:
        request = self.engine.scheduler.requests.get(name)
        running = request is not None and request.status == "running"
        moved = self._each(lambda engine: engine.take_out(name))
        if moved[0] is None:
            return None
        self._coverage.event(seen.MOVED, running)
        self._tier_checks.leaves(name)
        self.outside[name] = moved
        return "out"

    def _bring(self, name: str) -> object:
        if name not in self.outside:
            return None
        values = iter(reversed(self.outside[name]))  # from the other's ranks to one's own (Q4)
        experts = self.outside[name][0].experts
        before = trace(self.engine.cache)
        refusal = self._each(lambda engine: engine.bring_in(next(values)))[0]
        self._coverage.event(seen.NO_ROOM if refusal else seen.MOVED_IN)
        content = self.outside[name][0].content
        self._coverage.event(seen.SCALED_IN, not refusal and content and self.config.get("scaled"))
        if refusal:
            same = before == trace(self.engine.cache)
            self._coverage.check(
                "moved_requests_are_whole", same, lambda: f"{refusal} has left a trace"
            )
            return refusal
        del self.outside[name]
        tracked = self.tracked[name]
        tracked.happened.add("moved_requests_are_whole")
        self._coverage.event(seen.MOVED_OVER, tracked.weights != self.engine.scheduler.weights)
        tracked.hit = self.engine.scheduler.requests[name].computed
        tracked.shared = self._shared(name)
        if experts is None or experts.missing:  # incomplete rows do not move
            tracked.unrecorded = tracked.hit
        tracked.allowance = self._allowance(0)
        for other in self.tracked.values():
            other.allowance += 1  # the step that imported it
        return None

    def _shared(self, name: str) -> int:
        """Tokens that a moved request found in the index, where their rows are kept."""
        cache = self.engine.cache
        running = cache.live.get(name) if cache.experts else None
        return cache.experts.histories[running].hit if running else 0

    # --- the end ---

    def _drain(self, *, forget: bool) -> object:
        """Answer everything; with `forget`, drop the cache too: nothing may be left then."""
        for pin in sorted(self.pins):
            self._unpin(pin)
        for name in sorted(self.outside):
            self._bring(name)
        for _ in range(MOST_CALLS):
            if not self.engine.busy:
                break
            self._step()
        self._coverage.event(seen.DRAINED)
        self._tier_checks.judge_end()
        before = after = self.engine.cache.usage()
        if forget:
            self._each(lambda engine: engine.cache.evict(self.config["num_blocks"]))
            after = self.engine.cache.usage()
        self._coverage.check(
            "the_pool_is_empty_in_the_end",
            before.held == 0 and after.cached == (0 if forget else before.cached),
            lambda: f"without requests {before}, after evicting everything {after}",
        )
        return after


def _most_tokens(config: Config, layout: Any) -> int:
    """Full attention needs every unit; windows and chunks need only the last ones."""
    width = sum(layout.unit // g.block_size for g in layout.groups if g.kind == "full")
    states = sum(g.state_blocks for g in layout.groups if g.kind == "state")
    units: int = (config["num_blocks"] - 1 - states) // width if width else MOST_UNITS
    most: int = layout.unit * max(1, min(units, MOST_UNITS))
    return most


def _submit(engine: Any, name: str, prompt: Prompt) -> Any:
    return engine.add_request(
        name,
        prompt.tokens,
        max_new_tokens=prompt.new,
        namespace=prompt.namespace,
        spans=prompt.spans,
        read=prompt.read,
        store=prompt.store,
    )


def _first_difference(engine: Any, twin: Any) -> str:
    pairs = zip(engine.decisions(), twin.decisions(), strict=False)
    return next((f"{one} and {other}" for one, other in pairs if one != other), "one stops early")
