"""One wrong field for each of the contract: of an answer, or of a call that the target ignores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Namespace, Request, Span, TargetConfig
from kvproof.suites.tests.agreement.lies import FORK, ONE, OTHER, TWIN, A, Lie, whole
from kvproof.suites.tests.agreement.lies_core import BATCH, SMALL, TWICE
from kvproof.suites.tests.agreement.lies_full import HOST, MEDIA, PARTIAL, SHORT, STATE

RESUMED = (
    *(*whole(A), ops.Admit(OTHER), ops.Preempt("b")),
    ops.Admit(replace(OTHER, resumed=True)),
)


def of(**fields: Callable[[Any], object]) -> Callable[[Any], object]:
    """Change one field of an answer."""
    return lambda answer: replace(answer, **{n: f(getattr(answer, n)) for n, f in fields.items()})


def more(number: int) -> int:
    return number + 1


def longer(groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Put a block more into the table of the first group."""
    return ((*groups[0], 11), *groups[1:])


def at_end(change: Callable[[Any], object], *history: ops.Operation) -> Lie:
    return Lie(ONE, history, "inspect", len(history), change)


def once(verb: str, change: Callable[[Any], object], *history: ops.Operation) -> Lie:
    return Lie(ONE, history, verb, 0, change)


def first_state(**fields: Callable[[Any], object]) -> Callable[[Any], object]:
    """Change one field of the use of a state."""
    return of(states=lambda uses: (of(**fields)(uses[0]), *uses[1:]))


ANSWERS = {
    "StateUse.group": Lie(STATE, (ops.Admit(A),), "admit", 0, first_state(group=more)),
    "StateUse.read": Lie(
        replace(STATE, state_rows=9),
        (ops.Admit(A, 4), ops.Complete(), ops.Extend("a")),
        "extend",
        0,
        first_state(read=lambda _: (7,)),
    ),
    "StateUse.writes": Lie(
        STATE, (ops.Admit(A),), "admit", 0, first_state(writes=lambda each: each[-1:])
    ),
    "Scheduled.step": Lie(ONE, (ops.Admit(A), ops.Admit(TWIN)), "admit", 1, of(step=lambda _: 1)),
    "Scheduled.hit": once("admit", of(hit=lambda _: 2), ops.Admit(A)),
    "Scheduled.start": Lie(ONE, TWICE, "admit", 1, of(start=lambda _: 2)),
    "Scheduled.stop": once("admit", of(stop=more), ops.Admit(A)),
    "Scheduled.blocks": once("admit", of(blocks=lambda _: ((1,),)), ops.Admit(A)),
    "Scheduled.tables": once("admit", of(tables=lambda _: ((1, 2, 3, 5),)), ops.Admit(A)),
    "Scheduled.copies": Lie(
        PARTIAL, (*whole(A), ops.Admit(SHORT)), "admit", 1, of(copies=lambda _: ())
    ),
    "Scheduled.states": Lie(STATE, (ops.Admit(A),), "admit", 0, of(states=lambda _: ())),
    "Scheduled.saves": Lie(
        STATE,
        (ops.Admit(A, 4), ops.Complete(), ops.Admit(FORK)),
        "admit",
        0,
        of(saves=lambda _: ()),
    ),
    "Scheduled.encode": once("admit", of(encode=lambda _: ()), ops.Admit(MEDIA)),
    "Scheduled.moves": Lie(
        HOST, (*whole(A), ops.Admit(TWIN)), "admit", 1, of(moves=lambda _: ((0, 13, 9),))
    ),
    "Refused.reason": Lie(
        SMALL,
        (ops.Admit(Request("a", (1, 2, 3, 4, 5))),),
        "admit",
        0,
        of(reason=lambda _: "no_space"),
    ),
    "Refused.needed": Lie(SMALL, (ops.Admit(A),), "admit", 0, of(needed=lambda _: 2)),
    "Refused.available": Lie(SMALL, (ops.Admit(A),), "admit", 0, of(available=lambda _: 9)),
    "Completed.step": once("complete", of(step=more), ops.Admit(A), ops.Complete()),
    "Completed.blocks": once("complete", of(blocks=lambda _: ((1, 2, 3, 5),)), *whole(A)),
    "Completed.tables": once("complete", of(tables=lambda _: ((1, 2, 3, 5),)), *whole(A)),
    "Released.blocks": once("finish", of(blocks=lambda _: ((1,),)), *whole(A)),
    "Evicted.blocks": once("evict", of(blocks=lambda _: ((9,),)), *whole(A), ops.Evict(1)),
    "Batch.tables": once("batch", of(tables=lambda _: ((),)), *BATCH),
    "Usage.total": at_end(of(usage=of(total=more)), ops.Admit(A)),
    "Usage.free": at_end(of(usage=of(free=more)), ops.Admit(A)),
    "Usage.held": at_end(of(usage=of(held=more)), ops.Admit(A)),
    "Usage.cached": at_end(of(usage=of(cached=more)), *whole(A)),
    "HitStatistics.queries": at_end(of(statistics=of(queries=more)), *whole(A)),
    "HitStatistics.hits": at_end(of(statistics=of(hits=more)), *whole(A)),
    "HitStatistics.resumed_queries": at_end(of(statistics=of(resumed_queries=more)), *whole(A)),
    "HitStatistics.resumed_hits": at_end(of(statistics=of(resumed_hits=more)), *whole(A)),
    "Retained.tokens": at_end(of(retained=of(tokens=lambda _: 99)), *whole(A)),
    "Retained.requests": at_end(of(retained=of(requests=more)), *whole(A)),
    "Retained.namespaces": at_end(of(retained=of(namespaces=lambda _: 9)), *whole(A), ops.Reset()),
    "Retained.expert_rows": at_end(of(retained=of(expert_rows=more)), *whole(A)),
    "Retained.state_rows": Lie(
        replace(STATE, state_rows=9),
        (ops.Admit(A, 4),),
        "inspect",
        1,
        of(retained=of(state_rows=more)),
    ),
    "Inspection.usage": at_end(of(usage=of(free=lambda n: n - 1, held=more)), *whole(A)),
    "Inspection.state": at_end(of(state=lambda _: "x"), ops.Admit(Request("a", (*range(30),)))),
    "Inspection.holders": at_end(of(holders=lambda each: {**each, 1: 2}), ops.Admit(A)),
    "Inspection.statistics": at_end(of(statistics=of(hits=more, queries=more)), *whole(A)),
    "Inspection.events": at_end(of(events=lambda _: ()), ops.Admit(A), ops.Complete()),
    "Inspection.dropped": at_end(of(dropped=lambda _: ((1,),)), *whole(A), ops.Lookup(TWIN)),
    "Inspection.moves": Lie(
        HOST, (*whole(A), ops.Lookup(TWIN)), "inspect", 4, of(moves=lambda _: ((0, 9, 13),))
    ),
    "Inspection.retained": at_end(of(retained=of(requests=more)), *whole(A)),
}
"""Field -> an answer in which it alone is wrong."""


class Deaf(NamedTuple):
    """A target that hears `heard(argument)` in place of an argument of `verb`."""

    config: TargetConfig
    history: tuple[ops.Operation, ...]
    verb: str
    argument: str
    heard: Callable[[Any], object]

    def target(self, config: TargetConfig) -> ReferenceTarget:
        """Return a reference that is deaf."""
        target = make_target(config)
        honest = getattr(target, self.verb)

        def answer(*given: Any, **named: Any) -> Any:
            call = signature(honest).bind(*given, **named)
            call.apply_defaults()
            call.arguments[self.argument] = self.heard(call.arguments[self.argument])
            return honest(*call.args, **call.kwargs)

        setattr(target, self.verb, answer)
        return target


def request(history: tuple[ops.Operation, ...], **fields: Callable[[Any], object]) -> Deaf:
    return Deaf(ONE, history, "admit", "request", of(**fields))


def spaces(**fields: str) -> tuple[ops.Operation, ...]:
    """Serve equal tokens in two namespaces that differ in these fields."""
    other = replace(Namespace("x", "1", "s", "k"), **fields)
    first = replace(A, namespace=Namespace("x", "1", "s", "k"))
    return (*whole(first), ops.Admit(replace(TWIN, namespace=other)))


def images(one: Span, other: Span) -> tuple[ops.Operation, ...]:
    return (*whole(replace(A, spans=(one,))), ops.Admit(replace(TWIN, spans=(other,))))


def span(**fields: object) -> tuple[ops.Operation, ...]:
    one = Span("image", 0, 2, "7f")
    return images(one, replace(one, **fields))


def alike(**fields: object) -> dict[str, Callable[[Any], object]]:
    return {"spans": lambda each: tuple(replace(one, **fields) for one in each)}


CALLS = {
    "Namespace.adapter": request(
        spaces(adapter="y"), namespace=of(adapter=lambda each: each and "x")
    ),
    "Namespace.adapter_version": request(
        spaces(adapter_version="2"), namespace=of(adapter_version=lambda each: each and "1")
    ),
    "Namespace.salt": request(spaces(salt="t"), namespace=of(salt=lambda _: None)),
    "Namespace.key": request(spaces(key="l"), namespace=of(key=lambda _: None)),
    "Span.kind": request(span(kind="video"), **alike(kind="image")),
    "Span.start": request(span(start=1), **alike(start=0)),
    "Span.length": request(span(length=3), **alike(length=2)),
    "Span.content": request(span(content="7e"), **alike(content="7f")),
    "Request.tokens": request((*whole(A), ops.Admit(OTHER)), tokens=lambda _: A.tokens),
    "Request.namespace": request(spaces(salt="t"), namespace=lambda _: Namespace()),
    "Request.spans": request(span(content="7e"), spans=lambda _: ()),
    "Request.read": request((*whole(A), ops.Admit(replace(TWIN, read=False))), read=lambda _: True),
    "Request.store": request(
        (*whole(replace(A, store=False)), ops.Admit(TWIN)), store=lambda _: True
    ),
    "Request.resumed": request(RESUMED, resumed=lambda _: False),
    "Request.embedded": request(
        (*whole(A), ops.Admit(replace(TWIN, embedded=4))), embedded=lambda _: 0
    ),
    "Admit.request": request((*whole(A), ops.Admit(OTHER)), tokens=lambda _: A.tokens),
    "Admit.compute": Deaf(ONE, (ops.Admit(A, 4),), "admit", "compute", lambda _: None),
    "Extend.tokens": Deaf(
        ONE, (*whole(A)[:2], ops.Extend("a", (8, 9))), "extend", "tokens", lambda each: each[:1]
    ),
    "Extend.compute": Deaf(
        ONE, (*whole(A)[:2], ops.Extend("a", (8, 9), 1)), "extend", "compute", lambda _: None
    ),
    "Extend.drafts": Deaf(
        ONE, (*whole(A)[:2], ops.Extend("a", (8,), None, (9, 9))), "extend", "drafts", lambda _: ()
    ),
    "Complete.accepted": Deaf(
        ONE,
        (
            *(*whole(A)[:2], ops.Extend("a", (8,), None, (9, 9)), ops.Complete(0)),
            *(ops.Finish("a"), ops.Admit(replace(TWIN, tokens=(*A.tokens, 8, 9, 9, 9)))),
        ),
        "complete",
        "accepted",
        lambda _: None,
    ),
    "Complete.routed": Deaf(
        ONE, (ops.Admit(A), ops.Complete(), ops.Experts("a")), "complete", "experts", lambda _: ()
    ),
    "Pin.request": Deaf(
        ONE, (*whole(A), ops.Pin(TWIN)), "pin", "request", of(tokens=lambda each: each[:3])
    ),
    "Evict.count": Deaf(ONE, (*whole(A), ops.Evict(1)), "evict", "count", more),
    "Lookup.request": Deaf(
        ONE, (*whole(A), ops.Lookup(TWIN)), "lookup", "request", of(tokens=lambda each: each[:3])
    ),
    "ReadBatch.ids": Deaf(ONE, BATCH, "batch", "request_ids", lambda ids: ids[::-1]),
}
"""Field of a request, or keyword of an operation -> a target that does not hear it."""
