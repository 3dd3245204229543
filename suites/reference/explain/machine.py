"""The machine of the suite `explain`: a small cache that serves requests and explains each hit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import Namespace, Span
from kvproof.reference.observe.explainer import Explainer
from kvproof.reference.observe.explanation import LIMITS, Explanation
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.explain.oracle import Prompt, Record, RowsGiven, Truth
from kvproof.suites.reference.explain.properties import AFTER_RESET, LOST, SEVERAL, UNSTORED

Order: TypeAlias = "list[str]"

MOST_FILLED = 16


class _Expected(NamedTuple):
    """The explanation before an admission, and the truth."""

    prompt: Prompt
    lifted: dict[str, int]
    """Limit -> hit with it and every later one lifted."""
    lookup: int
    """The hit according to the manager's look-up."""
    truth: Truth


class ExplainMachine:
    """Runs requests one step at a time; `held` ones stay and take room."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        manager = CacheManager(
            CacheConfig(
                num_blocks=config["num_blocks"],
                groups=tuple(GroupConfig(*group) for group in config["groups"]),
                state_pool=config["state_pool"],
                max_requests=config["max_requests"],
                prefix_cache_decode_state_interval=config["interval"],
                return_routed_experts=config["experts"],
                experts=(8, 1, 1),
                require_cached_experts=config["experts"],
            )
        )
        self.config, self.manager, self.subject = config, manager, Explainer(manager)
        self.prompts: list[tuple[list[int], list[list[Any]]]] = []
        """Tokens and spans of all requests, for others to fork."""
        self.held: list[str] = []
        self._coverage = coverage
        self._records: list[Record] = []
        self._rows = RowsGiven(manager)
        self._hit = 0
        self._junction = 0
        """Divergence point of the present request (S8), from its hit."""
        self._forgotten: list[Prompt] = []
        self._unstored: list[Prompt] = []

    def apply(self, verb: str, **arguments: Any) -> object:
        """Serve a request, make room, or clear the cache."""
        return getattr(self, f"_{verb}")(**arguments)

    def _evict(self, *, count: int) -> object:
        return f"{len(self.manager.evict(count))} blocks"

    def _reset(self) -> None:
        self.manager.reset()
        self._forgotten += [record.prompt for record in self._records]
        self._records.clear()

    def _drop(self, *, name: str) -> None:
        if name in self.held:
            self.held.remove(name)
            self.manager.release(name)

    def _fill(self, *, token: int) -> object:
        for name in [*self.held]:
            self._drop(name=name)
        eviction = self.manager.eviction
        self.manager.evict(self.config["num_blocks"])
        room = self.manager.usage().free
        units = (room - 2 * eviction.state_blocks) // max(1, eviction.row_width)
        tokens = [token] * max(1, min(units, MOST_FILLED)) * eviction.unit
        return self._serve(name="f", tokens=tokens), self._serve(name="f", tokens=[*tokens, token])

    def _serve(
        self,
        *,
        name: str,
        tokens: list[int],
        spans: Sequence[list[Any]] = (),
        salt: str = "",
        read: bool = True,
        store: bool = True,
        rows: bool = True,
        compute: int | None = None,
        cut: str = "",
        decode: Sequence[Sequence[int]] = (),
        hold: bool = False,
    ) -> object:
        """Compute a whole prompt, then decode; `cut` ends it while its first step runs."""
        if name in self.held:
            return None
        prompt = Prompt(Namespace(salt=salt or None), tuple(tokens), tuple(Span(*s) for s in spans))
        access = decide(enabled=True, read=read, store=store)
        expected = self._ask(prompt, read=read)
        step = self.manager.begin_step()
        answer = self.manager.admit(
            name,
            tokens,
            namespace=prompt.namespace,
            spans=prompt.spans,
            compute=compute,
            access=access,
        )
        if isinstance(answer, Refusal):
            self.manager.end_step(step)
            return answer.reason
        self._judge(expected, answer, self.subject.explain(name))
        self._hit, self._junction = answer.hit, self.manager.live[name].divergence
        self.prompts.append((tokens, [*spans]))
        if cut == "release":
            self.manager.release(name)
        elif cut == "reset":
            self._reset()
        self._end(step, prompt, name, answer, store=store and not cut, rows=rows)
        if not store:
            self._unstored.append(prompt)
        if not cut:
            self._go_on(prompt, name, answer.stop, decode, compute, store=store, rows=rows)
        if hold and not cut:
            self.held.append(name)
        else:
            self.manager.release(name)
        return self.subject.explain(name).sentence()

    # --- serving ---

    def _go_on(
        self,
        prompt: Prompt,
        name: str,
        stop: int,
        decode: Sequence[Sequence[int]],
        compute: int | None,
        *,
        store: bool,
        rows: bool,
    ) -> None:
        length = len(prompt.tokens)
        while stop < len(prompt.tokens):
            step = self.manager.begin_step()
            answer = self.manager.extend(name, compute=compute)
            if isinstance(answer, Refusal):
                self.manager.end_step(step)
                return
            self._end(step, prompt, name, answer, store=store, rows=rows)
            stop = answer.stop
        for token, *drafts in decode:
            step = self.manager.begin_step()
            answer = self.manager.extend(name, [token], drafts=drafts)
            if isinstance(answer, Refusal):
                self.manager.end_step(step)
                return
            kept = len(drafts) // 2
            grown = (*prompt.tokens, token, *drafts[:kept])
            prompt = prompt._replace(tokens=grown)
            accepted = {name: kept} if drafts else {}
            self._end(
                step, prompt, name, answer, store=store, rows=rows, accepted=accepted, length=length
            )

    def _end(
        self,
        step: int,
        prompt: Prompt,
        name: str,
        answer: Admission,
        *,
        store: bool,
        rows: bool,
        accepted: dict[str, int] | None = None,
        length: int = 0,
    ) -> None:
        """End a step; its tokens can be reused from now on if they are stored.

        `length`: tokens of the prompt, if it grew since.
        """
        count = answer.stop - answer.start
        experts = {name: np.zeros((count, 1, 1), np.int64)} if rows and count else {}
        self._rows.forget_evicted()
        self.manager.end_step(step, accepted=accepted or {}, experts=experts)
        if store:
            stop = min(answer.stop, len(prompt.tokens))
            if rows:
                self._rows.give(prompt, self._hit, stop)
            self._records.append(Record(prompt, stop, wanted=False, saved=False))
            if answer.state is not None and not accepted:
                saved = [tokens for tokens, _ in answer.state.saves]
                for at in self._wanted(prompt, answer.start, stop, length or len(prompt.tokens)):
                    self._records.append(Record(prompt, at, wanted=True, saved=at in saved))

    def _wanted(self, prompt: Prompt, start: int, stop: int, length: int) -> set[int]:
        unit, interval = self.manager.config.layout.unit, self.config["interval"]
        passed = range(start + 1, stop + 1)
        borders = [
            at
            for at in passed
            if at % unit == 0
            and at < length
            and not any(span.start < at < span.start + span.length for span in prompt.spans)
        ]
        decoded = [at for at in passed if at > length and interval and at % interval == 0]
        whole = {length} if length % unit == 0 else set()
        return {*borders[-1:], *decoded[-1:], *((whole | {self._junction}) & {*passed})}

    # --- judging ---

    def _ask(self, prompt: Prompt, *, read: bool) -> _Expected:
        """Lift limits, last first, before the admission changes the cache.

        Whether its own pins take a request's room shows only at admission.
        """
        names, tokens = list(LIMITS), list(prompt.tokens)
        namespace, spans = prompt.namespace, prompt.spans
        access = decide(enabled=True, read=read)
        lifted = {
            name: self.subject.hit_without(
                names[place:], tokens, namespace=namespace, spans=spans, access=access
            )
            for place, name in enumerate(names)
        }
        lookup = self.manager.lookup(tokens, namespace=namespace, spans=spans)
        truth = Truth(self.manager, self._records, self._rows, prompt)
        return _Expected(prompt, lifted, lookup, truth)

    def _judge(self, expected: _Expected, answer: Admission, said: Explanation) -> None:
        truth, lost = expected.truth, said.lost
        self._coverage.check(
            "explained_causes_add_up",
            said.hit == answer.hit
            and said.optimum == truth.optimum
            and said.prompt == len(expected.prompt.tokens)
            and all(count > 0 for count in lost.values())
            and sum(lost.values()) == truth.optimum - answer.hit,
            lambda: f"{dict(lost)} explain {truth.optimum} - {answer.hit} tokens: {said}",
        )
        for place, name in enumerate(LIMITS):
            right = _without(expected, answer, list(LIMITS)[:place])
            length = _content(expected) if name == "access" else right
            self._coverage.check(
                "lifting_a_limit_raises_the_hit",
                said.hit_without(name) == right and expected.lifted[name] == length,
                partial(_wrong, name, right, said, expected),
            )
        self._coverage.check(
            "lifting_a_limit_raises_the_hit",
            expected.lookup == _content(expected),
            lambda: (
                f"a hit of {_content(expected)} is expected, the manager gives {expected.lookup}"
            ),
        )
        self._count(expected.prompt, lost)

    def _count(self, prompt: Prompt, lost: Any) -> None:
        for limit in lost:
            self._coverage.event(LOST[limit])
        self._coverage.event(SEVERAL, len(lost) > 2)
        self._coverage.event(AFTER_RESET, prompt in self._forgotten)
        self._coverage.event(UNSTORED, prompt in self._unstored)


_CONTENT = list(LIMITS)[: list(LIMITS).index("own_pins")]


def _content(expected: _Expected) -> int:
    return expected.truth.hit(_CONTENT)


def _without(expected: _Expected, answer: Admission, applied: Order) -> int:
    """Own pins are lifted by a look-up without admission, access by any look-up."""
    if "own_pins" not in applied:
        return expected.truth.hit(applied)
    return answer.hit if answer.access.read else _content(expected)


def _wrong(name: str, right: int, said: Explanation, expected: _Expected) -> str:
    return (
        f"with {name} and later limits lifted the hit is {right}, the explanation gives "
        f"{said.hit_without(name)}, a replay {expected.lifted[name]}: {said}"
    )
