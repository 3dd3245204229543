"""Results of a history: checks, situations, and its first violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_NO_FACTS: Mapping[str, object] = MappingProxyType({})


def _no_slots() -> list[dict[str, object]]:
    return []


class IllegalAccess(Exception):
    """A kernel of the engine reads or writes outside of a tensor: a finding, not our fault."""


@dataclass(frozen=True)
class Wrong:
    """A property that did not hold."""

    property: str
    sentence: str
    tick: int
    """Virtual time, in steps."""
    facts: Mapping[str, object]
    """The numbers of the sentence, by name, as JSON."""
    slots: Sequence[Mapping[str, object]] = ()
    """Slots that were read, block by block: `SlotsRead` of the records."""

    def struck(self) -> list[str]:
        """Return the requests that cannot be followed any further."""
        one = [self.facts["request"]] if "request" in self.facts else []
        found = self.facts.get("requests", one)
        return list(map(str, found)) if isinstance(found, list) else []


class Findings:
    """Counts checks and situations by name; keeps the first violation and never raises.

    A check may run inside of the engine's step, where an exception would be the engine's own.
    """

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        self.situations: Counter[str] = Counter()
        self.wrong: Wrong | None = None
        self._later: dict[object, Wrong] = {}
        """Request -> its first violation after `wrong` in the same step."""
        self.repeated = -1
        """Tick at which the end of a copy was last reported a second time."""
        self.context: dict[str, object] = {}
        """Facts of the history, for every violation from now on."""
        self.tick = 0

    def saw(self, situation: str, happened: object = True) -> None:  # noqa: FBT002 - a condition
        """Count a situation if `happened` is true."""
        if happened:
            self.situations[situation] += 1

    def repeats(self, *, happened: object = True) -> None:
        """Note that the end of a copy is reported a second time."""
        if happened:
            self.saw("the end of a copy is reported twice")
            self.repeated = self.tick

    def just_repeated(self) -> bool:
        """Tell whether an end was repeated in this step or, asynchronous, in the one before."""
        return self.repeated >= 0 and self.tick - self.repeated <= 1

    def check(
        self,
        prop: str,
        ok: object,
        sentence: Callable[[], str],
        *,
        facts: Mapping[str, object] = _NO_FACTS,
        slots: Callable[[], Sequence[Mapping[str, object]]] = _no_slots,
    ) -> bool:
        """Count a check; keep the sentence of the first that failed. Returns whether it held."""
        self.checks[prop] += 1
        request = facts.get("request")
        if not ok and (self.wrong is None or request not in (None, *self._later)):
            found = Wrong(prop, sentence(), self.tick, {**self.context, **facts}, slots())
            if self.wrong is not None:
                self._later[request] = found
            self.wrong = self.wrong or found
        return bool(ok)

    def go_on(self, struck: Collection[str]) -> None:
        """Take up the next violation, if there is one of a request that was not struck."""
        left = {name: each for name, each in self._later.items() if name not in struck}
        self.wrong = left.pop(next(iter(left))) if left else None
        self._later = left
