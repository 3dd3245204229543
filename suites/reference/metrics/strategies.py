"""Suite `metrics`: small hybrid caches with something to count in every step.

A cache manager with its metrics, and counts and lines made from its answers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.observe.cache_metrics import LOG, CacheMetrics
from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.metrics import properties as seen
from kvproof.suites.reference.metrics.log import captured
from kvproof.suites.reference.metrics.properties import PROPERTIES


class MetricsMachine:
    """Requests come, stay over some steps, and go; each answer is counted twice."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        groups = tuple(GroupConfig(*group) for group in config["groups"])
        manager = CacheManager(
            CacheConfig(
                config["num_blocks"],
                groups=groups,
                state_pool=config["state_pool"],
                max_requests=3,
                prefix_cache_decode_state_interval=config["interval"],
            )
        )
        self.unit = manager.config.layout.unit
        self._width = manager.config.layout.full.width
        manager.eviction.on_evicted.append(self._drop)
        self._manager, self._subject = manager, CacheMetrics(manager)
        self._coverage = coverage
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._evicted: Counter[int] = Counter()
        self._lines: list[str] = []
        """Expected from the present operation, evictions in the order of their reports."""
        self._states = [g for g, group in enumerate(groups) if group.kind == "state"]
        self._steps: list[int] = []
        self.prompts: list[list[int]] = []
        self.preempted: dict[str, list[int]] = {}

    @property
    def live(self) -> list[str]:
        """Requests that were admitted and are not released."""
        return sorted(self._manager.live)

    def _drop(self, group: int, ids: Iterable[int]) -> None:
        gone = [int(block) for block in ids if block != NULL_BLOCK]
        self._evicted[group] += len(gone)
        self._counts["evicted checkpoints"] += self._states[:1] == [group]
        if gone:
            self._lines.append(f"evict group={group} blocks={gone}")

    def apply(self, verb: str, **arguments: Any) -> object:
        verbs: dict[str, Callable[..., object]] = {
            "admit": self._admit,
            "extend": self._extend,
            "end": self._end,
            "release": self._release,
            "evict": lambda count: len(self._manager.evict(count)),
            "reset": self._manager.reset,
        }
        self._lines.clear()
        with captured(LOG) as lines:
            answer = verbs[verb](**arguments)
        self._judge_counters()
        self._coverage.equal(
            "log_lines_name_request_and_blocks", lines, self._lines, f"{verb} logs"
        )
        return answer

    def _admit(self, *, name: str, tokens: list[int], resumed: bool) -> object:
        if name in self._manager.live or (resumed and name not in self.preempted):
            return None
        self._steps.append(self._manager.begin_step())
        answer = self._manager.admit(name, tokens, resumed=resumed)
        if isinstance(answer, Admission):
            self._counts["admitted"] += 1
            self.preempted.pop(name, None)
            self.prompts.append(tokens)
            blocks = answer.table[: answer.hit // self.unit * self._width].tolist()
            self._lines.append(f"match request={name} hit={answer.hit} access=allowed {blocks=!s}")
            self._coverage.event(seen.RESUMED, resumed)
            self._coverage.event(seen.HIT, answer.hit)
        return self._scheduled(name, answer)

    def _extend(self, *, name: str, tokens: list[int]) -> object:
        if name not in self._manager.live:
            return None
        self._steps.append(self._manager.begin_step())
        return self._scheduled(name, self._manager.extend(name, tokens))

    def _scheduled(self, name: str, answer: Admission | Refusal) -> object:
        if isinstance(answer, Refusal):
            self._refused[answer.reason] += 1
            self._coverage.event(seen.REFUSED)
            return answer.reason
        if answer.state is not None:
            restore, saves = answer.state.restore, answer.state.saves
            if restore is not None:
                source, to = (ids.tolist() for ids in restore)
                self._lines.append(
                    f"restore request={name} tokens={answer.start} from={source} {to=!s}"
                )
            for tokens, ids in saves:
                self._lines.append(f"save request={name} tokens={tokens} to={ids.tolist()}")
            self._counts["restored"] += restore is not None
            self._counts["saved"] += len(saves)
            self._coverage.event(seen.RESTORED, restore is not None)
            self._coverage.event(seen.SAVED, saves)
        return f"{answer.start}..{answer.stop}"

    def _end(self) -> None:
        if self._steps:
            self._manager.end_step(self._steps.pop(0))

    def _release(self, *, name: str, preempt: bool) -> None:
        if name in self._manager.live:
            if preempt:
                self.preempted[name] = self.prompts[-1]
            self._manager.release(name)

    def _judge_counters(self) -> None:
        subject, counts = self._subject, self._counts
        self._coverage.event(seen.IN_FLIGHT, self._steps)
        self._coverage.event(seen.EVICTED, sum(map(bool, self._evicted.values())) > 1)
        counted = (
            subject.admitted,
            +subject.refused,
            +subject.evicted,
            (subject.saved, subject.restored, subject.evicted_checkpoints),
            subject.steps_in_flight,
        )
        expected = (
            counts["admitted"],
            self._refused,
            +self._evicted,
            (counts["saved"], counts["restored"], counts["evicted checkpoints"]),
            len(self._steps),
        )
        self._coverage.equal("counters_count_what_happened", counted, expected, "the counters are")


_FULL, _STATE = ("full", 2), ("state", 2)
LAYOUTS = ((_FULL,), (_FULL, _STATE), (_STATE,), (_FULL, ("window", 2, 4), _STATE))
NAMES = ("a", "b", "c", "d")
VERBS = ("admit", "admit", "admit", "end", "end", "end", "extend", "release", "release", "rare")


def draw_config(draw: Draw) -> Config:
    return {
        "groups": draw(st.sampled_from(LAYOUTS)),
        "num_blocks": draw(st.integers(6, 24)),
        "state_pool": draw(st.sampled_from(("shared", "separate"))),
        "interval": draw(st.sampled_from((0, 2))),
    }


def draw_operation(machine: MetricsMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(VERBS))
    if verb in ("extend", "release") and machine.live:
        name = draw(st.sampled_from(machine.live))
        if verb == "extend":
            return verb, {"name": name, "tokens": _tokens(draw, 1)}
        return verb, {"name": name, "preempt": draw(st.booleans())}
    if verb == "rare":
        if draw(st.integers(0, 3)):
            return "evict", {"count": draw(st.integers(1, 4))}
        return "reset", {}
    if verb == "end":
        return verb, {}
    if machine.preempted and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(machine.preempted)))
        return "admit", {"name": name, "tokens": machine.preempted[name], "resumed": True}
    return "admit", {"name": draw(st.sampled_from(NAMES)), **_prompt(machine, draw)}


def _prompt(machine: MetricsMachine, draw: Draw) -> Arguments:
    head = draw(st.sampled_from(machine.prompts[-3:])) if machine.prompts else []
    if not draw(st.integers(0, 3)):
        head = head[: len(head) // 2]
    return {"tokens": [*head, *_tokens(draw, 4)][:14], "resumed": False}


def _tokens(draw: Draw, most: int) -> list[int]:
    tokens: list[int] = draw(st.lists(st.integers(0, 1), min_size=1, max_size=most))
    return tokens


SUITE = ComponentSuite("metrics", PROPERTIES, draw_config, MetricsMachine, draw_operation)
