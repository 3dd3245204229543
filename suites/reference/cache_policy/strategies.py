"""The suite `access`: reads and writes of the cache by request (A1, A2).

The subject is a cache manager with room for everything; the model is the longest prefix stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import Access, decide
from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.property import table

HELD_BACK = "a request that may not read meets its own prefix"
NOT_STORED = "a prompt comes back that was not stored"
SEVERAL = "several options at once"
OFF = "prefix caching is off"
BLOCK = 4
BLOCKS = 4_000
"""Blocks without any eviction: there are 60 requests of at most 60 tokens."""

PROPERTIES = table(
    vars(),
    """
a_decision_names_every_reason | A1 | SEVERAL OFF
    reading and storing are `allowed`, or refused with every reason there is
    why: a prompt is not cached, and the log gives no reason or only half of it
a_decision_is_what_happens | A1 A2 | HELD_BACK NOT_STORED | by brute force
    a request hits what was stored before if it may read, and nothing else
    why: an option against caching is accepted and then ignored, or blocks caching for everybody
    else
""",
)

WISHES = {
    "read": (True, "asked not to read"),
    "store": (True, "asked not to store"),
    "needs_every_token": (False, "needs every prompt token"),
}
"""Keyword of a decision -> its usual value, and the name of the other one."""


class CachePolicyMachine:
    """Runs requests one after the other, each to its end."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._enabled: bool = config["enabled"]
        self._manager = CacheManager(
            CacheConfig(BLOCKS, BLOCK, enable_prefix_caching=self._enabled)
        )
        self._coverage = coverage
        self._count = 0
        self.prompts: dict[tuple[int, ...], bool] = {}
        """Prompt -> whether some request has stored it."""

    def apply(self, verb: str, *, tokens: Sequence[int], wishes: Sequence[str]) -> object:
        """Serve a request that differs from the usual in `wishes`."""
        assert verb == "serve", verb
        decision = decide(
            enabled=self._enabled,
            **{name: (name in wishes) != usual for name, (usual, _) in WISHES.items()},
        )
        self._judge_decision(decision, wishes)
        admission = self._serve(tuple(tokens), decision)
        self._judge_hit(tuple(tokens), admission, wishes)
        return f"{decision.reason}: hit {admission.hit}"

    def _judge_decision(self, decision: Access, wishes: Sequence[str]) -> None:
        expected = self._expected(wishes)
        self._coverage.event(OFF, not self._enabled)
        self._coverage.event(SEVERAL, self._enabled and len(wishes) > 1)
        self._coverage.check(
            "a_decision_names_every_reason",
            (decision.read, decision.write) == (expected.read, expected.write)
            and set(decision.reason.split(", ")) == set(expected.reason.split(", ")),
            lambda: f"the decision is {decision}, expected {expected}",
        )

    def _expected(self, wishes: Sequence[str]) -> Access:
        if not self._enabled:
            return Access(read=False, write=False, reason=OFF)
        reasons = ", ".join(WISHES[name][1] for name in wishes) or "allowed"
        return Access(self._may_read(wishes), "store" not in wishes, reasons)

    def _may_read(self, wishes: Sequence[str]) -> bool:
        return not {"read", "needs_every_token"} & set(wishes)

    def _serve(self, tokens: tuple[int, ...], decision: Access) -> Admission:
        name, self._count = f"r{self._count}", self._count + 1
        step = self._manager.begin_step()
        admission = self._manager.admit(name, tokens, access=decision)
        assert isinstance(admission, Admission), "there is room for everything"
        self._manager.end_step(step)
        self._manager.release(name)
        return admission

    def _judge_hit(
        self, tokens: tuple[int, ...], admission: Admission, wishes: Sequence[str]
    ) -> None:
        stored = [old for old, kept in self.prompts.items() if kept]
        longest = max((_shared(tokens, old) for old in stored), default=0)
        reads = self._enabled and self._may_read(wishes)
        self._coverage.event(HELD_BACK, longest and not reads)
        self._coverage.event(NOT_STORED, reads and self.prompts.get(tokens) is False)
        self._coverage.equal(
            "a_decision_is_what_happens", admission.hit, longest if reads else 0, "tokens hit:"
        )
        stores = self._enabled and "store" not in wishes
        self.prompts[tokens] = self.prompts.get(tokens, False) or stores


def _shared(tokens: tuple[int, ...], stored: tuple[int, ...]) -> int:
    """Tokens reusable from a stored prompt: whole blocks, never the last token (T1)."""
    blocks = min((len(tokens) - 1) // BLOCK, len(stored) // BLOCK)
    differ = (i for i in range(blocks) if _block(tokens, i) != _block(stored, i))
    return BLOCK * next(differ, blocks)


def _block(tokens: tuple[int, ...], index: int) -> tuple[int, ...]:
    return tokens[index * BLOCK : (index + 1) * BLOCK]


def draw_config(draw: Draw) -> Config:
    """Draw whether prefix caching is on, mostly yes."""
    return {"enabled": draw(st.integers(0, 7)) < 7}


def draw_operation(machine: CachePolicyMachine, draw: Draw) -> tuple[str, Arguments]:
    known = sorted(machine.prompts)
    if known and draw(st.booleans()):
        tokens = list(draw(st.sampled_from(known)))
    else:
        blocks = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        tokens = [token for token in blocks for _ in range(BLOCK)][draw(st.integers(0, 2)) :]
    wishes = [name for name in WISHES if draw(st.integers(0, 3)) == 3]
    return "serve", {"tokens": tokens, "wishes": wishes}


SUITE = ComponentSuite("access", PROPERTIES, draw_config, CachePolicyMachine, draw_operation)
