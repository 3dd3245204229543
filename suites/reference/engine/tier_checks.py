"""Checks of objects that go to the tiers below the pool and come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.engine import properties as seen
from kvproof.suites.reference.engine.observer import trace
from kvproof.suites.reference.engine.tracked_requests import TrackedRequest

_TIERS = ("host", "disk", "remote")
"""Fastest first."""
BACK = "what_comes_back_is_what_was_computed"
TROUBLED = "late_or_failed_loads_cost_no_correctness"


class TierChecks:
    """Inspects the tiers of an engine before and after each call."""

    def __init__(
        self,
        engine: Any,
        coverage: Coverage,
        tracked: dict[str, TrackedRequest],
        scaled: Collection[int] = (),
    ) -> None:
        """`scaled`: groups whose entries have scales (Q8)."""
        self._engine, self._coverage, self._tracked = engine, coverage, tracked
        self._unit = engine.config.cache.layout.unit
        self._parts: set[str] = set()
        """Objects that came back for the request of the present admission."""
        groups = engine.config.cache.layout.groups
        sidecars = {at for at, group in enumerate(groups) if group.beside is not None}
        self._with_sidecar = parts_of(engine.config.cache.layout, sidecars)
        self._with_scales = parts_of(engine.config.cache.layout, scaled)
        self._promised: dict[str, Counter[str]] = {}
        """Request -> tier -> tokens, of the load before its admission."""
        self._came_back = False
        self._known: list[tuple[tuple[int, ...], Any]] = []
        """Prompts with their namespaces, since the last reset."""
        self._old: list[tuple[tuple[int, ...], Any]] = []
        self._waits: Counter[str] = Counter()
        """Request -> steps that it has waited for objects, since it last ran."""
        self._abandoned = 0
        self._counted: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        """Resumed or not -> tier -> tokens that came back for admitted requests (V1)."""
        if engine.tiers is not None:
            self._guard_prepare(engine.tiers)
            self._guard_admit(engine.cache)
            self._guard_load(engine.model)
            self._guard_sources(engine.tiers)

    def _guard_prepare(self, tiers: Any) -> None:
        call, cache = tiers.prepare, self._engine.cache

        def guarded(request: Any, compute: Any) -> Any:
            before, abandoned = trace(cache), tiers.abandoned
            self._parts.clear()
            answer = call(request, compute)
            self._cover_trouble(request.id, abandoned)
            self._judge_abandoned(request.id, tiers.abandoned - abandoned)
            self._judge_wait(request.id, answer)
            if hasattr(answer, "reason") or not answer:
                self._coverage.check(
                    "waiting_for_objects_changes_nothing",
                    before == trace(cache),
                    lambda: f"{request.id} gets {answer}, and something has changed",
                )
            else:
                self._came(request, answer)
                self._cover_span(request, compute)
            return answer

        tiers.prepare = guarded

    def _judge_abandoned(self, name: str, more: int) -> None:
        """Count each load once that ends when its request has waited for long enough (V2)."""
        self._abandoned += more > 0
        waited, patience = self._waits[name], self._engine.tiers.patience
        self._coverage.check(
            "waits_are_bounded",
            self._engine.tiers.abandoned == self._abandoned and (not more or waited >= patience),
            lambda: (
                f"{self._engine.tiers.abandoned} loads count as abandoned, {self._abandoned} are; "
                f"{name} has waited in {waited} of {patience} steps"
            ),
        )

    def _judge_wait(self, name: str, answer: Any) -> None:
        waits, patience = self._waits, self._engine.tiers.patience
        if hasattr(answer, "reason"):
            waits[name] += 1
            self._coverage.check(
                "waits_are_bounded",
                waits[name] <= patience,
                lambda: f"{name} has waited for objects in {waits[name]} of {patience} steps",
            )

    def _cover_trouble(self, name: str, abandoned: int) -> None:
        tiers, saw = self._engine.tiers, self._coverage.event
        happened, tiers.source.happened = tiers.source.happened, set()
        gave_up = tiers.abandoned > abandoned
        saw(seen.LATE, "late" in happened)
        saw(seen.FAILED, "failed" in happened)
        saw(seen.PARTLY, "failed in part" in happened)
        saw(seen.ABANDONED, gave_up)
        if happened or gave_up:
            self._tracked[name].happened.add(TROUBLED)

    def _came(self, request: Any, sources: dict[str, int]) -> None:
        saw = self._coverage.event
        self._promised[request.id], self._came_back = Counter(sources), True
        saw(seen.FROM_HOST, sources.get("host"))
        saw(seen.FROM_DISK, sources.get("disk"))
        saw(seen.STATE_BACK, "state" in self._parts)
        saw(seen.LOCAL_BACK, any(part.startswith("local") for part in self._parts))
        saw(seen.GROUPS_BACK, self._parts and "full" not in self._parts)
        saw(seen.SIDECAR_BACK, self._parts & self._with_sidecar)
        saw(seen.SCALED_BACK, self._parts & self._with_scales)

    def _cover_span(self, request: Any, compute: int | None) -> None:
        """Count a first step that grows to the end of a span (M3)."""
        hit = self._engine.cache.hits.find(request, request.prompt - 1).tokens(self._unit)
        stop = hit + (compute or request.prompt)
        grows = any(span.start < stop < span.start + span.length for span in request.spans)
        self._coverage.event(seen.SPAN_AFTER, grows)

    def _guard_load(self, model: Any) -> None:
        call = model.load

        def guarded(places: Any, objects: Any) -> None:
            self._parts |= {place.part for place in places}
            call(places, objects)

        model.load = guarded

    def _guard_sources(self, tiers: Any) -> None:
        call = tiers.tokens_by_tier

        def guarded(plan: Any, places: Any) -> Any:
            found, right = call(plan, places), _slowest(plan, places, self._unit)
            tiers_of = {(need.unit, places[need.key] or _TIERS[0]) for need in plan.needs}
            several = len(tiers_of) > len({unit for unit, _ in tiers_of})
            self._coverage.event(seen.UNEQUAL_TIERS, several)
            self._coverage.equal(
                "loaded_objects_are_hit_by_their_request", found, right, "tokens by tier:"
            )
            return found

        tiers.tokens_by_tier = guarded

    def _guard_admit(self, cache: Any) -> None:
        call = cache.admit

        def guarded(wanted: Any) -> Any:
            answer, name = call(wanted), wanted.id
            sources = self._promised.pop(name, Counter[str]())
            promised = sources.total()
            if not hasattr(answer, "reason"):
                self._waits.pop(name, None)
            self._counted[wanted.resumed] += sources
            if promised:
                self._coverage.event(seen.RESUMED_BACK, wanted.resumed)
                self._judge_counts()
                self._coverage.check(
                    "loaded_objects_are_hit_by_their_request",
                    not hasattr(answer, "reason") and answer.hit >= promised,
                    lambda: f"{promised} tokens came back for {name}, which got {answer}",
                )
                spans = self._tracked[name].prompt.spans
                self._coverage.event(
                    seen.MEDIA_BACK, any(span.start < answer.hit for span in spans)
                )
            if self._came_back and not hasattr(answer, "reason") and answer.hit:
                self._tracked[name].happened.add(BACK)
            return answer

        cache.admit = guarded

    def _judge_counts(self) -> None:
        """Loaded tokens count by tier, those of resumed requests apart (V1)."""
        tiers = self._engine.tiers
        counted = {False: Counter(tiers.loaded), True: Counter(tiers.loaded_again)}
        by = "loaded tokens, by resumed or not:"
        self._coverage.equal("loaded_objects_are_hit_by_their_request", counted, self._counted, by)

    # --- calls of the machine ---

    def asks(self, tokens: tuple[int, ...], namespace: Any) -> None:
        """Count a prompt that resembles others of another namespace or epoch."""
        if self._holds():
            unit, saw = self._unit, self._coverage.event
            other = [old for old, space in self._known if space != namespace]
            before = [old for old, space in self._old if space == namespace]
            saw(seen.OTHER_SPACE, any(_alike(tokens, old, unit) for old in other))
            saw(seen.OLD_EPOCH, any(_alike(tokens, old, unit) for old in before))
        self._known.append((tokens, namespace))

    def _holds(self) -> bool:
        tiers = self._engine.tiers
        return tiers is not None and any(
            tier.status().objects for tier in (tiers.host, tiers.disk) if tier
        )

    def leaves(self, name: str) -> None:
        """Note that a request is moved out: its wait starts anew elsewhere."""
        self._waits.pop(name, None)

    def resets(self) -> None:
        self._waits.clear()
        if self._holds():
            self._old, self._known = self._known, []
        self._came_back = False

    def judge_end(self) -> None:
        tiers = self._engine.tiers
        if tiers is None:
            return
        self._judge_counts()
        pinned = [tier.status().pinned for tier in (tiers.host, tiers.disk) if tier]
        self._coverage.check(
            "the_pool_is_empty_in_the_end",
            not tiers.num_loading and not any(pinned),
            lambda: f"{tiers.num_loading} loads and leases on {pinned} objects are left",
        )


def _slowest(plan: Any, places: Any, unit: int) -> dict[str, int]:
    """Count the loaded tokens by the slowest tier of their unit's objects, token by token (V1)."""
    counts = Counter[str]()
    for token in range(plan.before, plan.length * unit):
        needs = [need for need in plan.needs if need.unit == token // unit] or plan.needs
        found = [_TIERS[0], *(places[need.key] or _TIERS[0] for need in needs)]
        counts[max(found, key=_TIERS.index)] += 1
    return dict(counts)


def _alike(tokens: tuple[int, ...], old: tuple[int, ...], unit: int) -> bool:
    """Whether a whole unit could be confused."""
    return len(tokens) > unit and tokens[:unit] == old[:unit]


def parts_of(layout: Any, groups: Collection[int]) -> set[str]:
    """Return the objects that have blocks of some of the groups."""
    rules = {"full": layout.full} | {f"local{at}": rule for at, rule in enumerate(layout.local)}
    return {part for part, rule in rules.items() if {m.group for m in rule.members} & {*groups}}
