"""The sessions of an engine: the tokens of their complete turns, and the turn that runs (Q7).

A session has a label in the history, and a name of its own in the engine each time it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.harness.contract.whole_engine import Output
from kvproof.harness.model.chain import Chain

_BY_ITSELF = ("length", "stop")


@dataclass
class _Talk:
    name: str
    history: list[int] = field(default_factory=list)
    turn: str = ""
    """Request; empty: none runs."""
    answered: int = 0
    kept: int = 0
    """Tokens that the engine has computed of the history, and not lost since."""
    able: int = 0
    """Most tokens of the history that it may still hold."""
    turns: int = 0
    aborted: bool = False
    """Its last turn did not end by itself."""


class Conversations:
    """Model of the sessions that are open."""

    def __init__(self) -> None:
        self._talks: dict[str, _Talk] = {}
        self._turns: dict[str, _Talk] = {}
        """Request -> its session, from its arrival until the engine has ended it."""
        self._opened = 0

    def busy(self, label: str) -> bool:
        """Tell whether a turn of a session runs."""
        return label in self._talks and bool(self._talks[label].turn)

    def history(self, label: str) -> list[int] | None:
        """Return the tokens of a session's complete turns; None: it has none."""
        talk = self._talks.get(label)
        return (talk.history if talk else None) or None

    def begin(self, label: str, request: str) -> tuple[str, int]:
        """Note a turn; return the session's name in the engine, and how many tokens it has."""
        if label not in self._talks:
            self._opened += 1
            self._talks[label] = _Talk(f"{label}.{self._opened}")
        talk = self._talks[label]
        talk.turn, talk.answered = request, 0
        talk.turns += 1
        self._turns[request] = talk
        return talk.name, len(talk.history)

    def kept(self, request: str) -> int:
        """Return the tokens of a turn that its session keeps now."""
        talk = self._turns.get(request)
        return talk.kept if talk else 0

    def able(self, request: str) -> int:
        """Return the most tokens of a turn that its session may hold now."""
        talk = self._turns.get(request)
        return talk.able if talk else 0

    def later(self, request: str) -> bool:
        """Tell whether a request is a turn after others of its session."""
        talk = self._turns.get(request)
        return talk is not None and talk.turns > 1

    def aborted(self, request: str) -> bool:
        """Tell whether the turn before a turn did not end by itself."""
        talk = self._turns.get(request)
        return talk is not None and talk.aborted

    def lengths(self) -> dict[str, int]:
        """Return the tokens of the complete turns of each open session."""
        return {label: len(talk.history) for label, talk in self._talks.items()}

    def holds(self, label: str) -> bool:
        """Tell whether an open session keeps tokens between turns."""
        return label in self._talks and bool(self._talks[label].kept)

    def refused(self, request: str) -> None:
        """The engine did not take a turn."""
        if talk := self._turns.pop(request, None):
            talk.turn = ""

    def answered(self, output: Output, chain: Chain) -> None:
        """Follow a turn: one that ends by itself becomes history, another one leaves no trace."""
        talk = self._turns.get(output.id)
        if talk is None:
            return
        talk.answered += len(output.tokens)
        if output.finished:
            talk.kept, talk.aborted = 0, output.finished not in _BY_ITSELF
            if not talk.aborted:
                end = chain.prompt + talk.answered
                chain.ensure(end)
                talk.history = list(chain.tokens[:end])
                # an engine that schedules ahead may have computed the last answer, too
                talk.kept, talk.able = end - 1, end
            self.refused(output.id)

    def reset(self) -> None:
        """After a reset sessions keep their history, and no block."""
        for talk in self._talks.values():
            talk.kept = talk.able = 0

    def close(self, label: str) -> str:
        """Forget a session; returns its name in the engine, empty if it is not open."""
        talk = self._talks.pop(label, None)
        return talk.name if talk else ""

    def idle(self) -> list[str]:
        """Return the labels of open sessions without a turn."""
        return [label for label, talk in self._talks.items() if not talk.turn]
