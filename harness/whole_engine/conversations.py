"""The sessions of an engine: the tokens of their complete turns, and the turn that runs (Q7).

`Turns` judges where turns begin, which tokens they compute, and what stays held.

A session has a label in the history, and a name of its own in the engine each time it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvproof.harness.contract.whole_engine import (
    OWN,
    EngineConfig,
    Holdings,
    Output,
    Row,
    WholeEngine,
)
from kvproof.harness.model.chain import Chain
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings

_UNTIL_CLOSED = 3
"""Steps after which no block of a closed session is held, once the engine is idle."""
_MOST_UNTIL_REST = 50
"""Most steps until copies of a closed session's blocks have ended."""
GOES_ON = "a_session_goes_on_from_what_it_holds"
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
        self._ended: dict[str, int] = {}
        """Turn that has ended -> the most tokens that its session held for it."""
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
        """Return the most tokens of a turn that its session may hold now, or held at its end."""
        talk = self._turns.get(request)
        return talk.able if talk else self._ended.get(request, 0)

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
            self._ended[output.id] = talk.able
            talk.kept, talk.aborted = 0, output.finished not in _BY_ITSELF
            if not talk.aborted:
                end = chain.prompt + talk.answered
                chain.ensure(end)
                talk.history = list(chain.tokens[:end])
                # an engine that schedules ahead may have computed the last answer, too
                talk.kept, talk.able = end - 1, end
            self.refused(output.id)

    def reset(self) -> None:
        """After a reset sessions keep their history, and no block; closed ones with a turn, too."""
        for talk in (*self._talks.values(), *self._turns.values()):
            talk.kept = talk.able = 0

    def close(self, label: str) -> str:
        """Forget a session; returns its name in the engine, empty if it is not open."""
        talk = self._talks.pop(label, None)
        return talk.name if talk else ""

    def idle(self) -> list[str]:
        """Return the labels of open sessions without a turn."""
        return [label for label, talk in self._talks.items() if not talk.turn]


class Turns:
    """Judges turns as they are launched, and holdings while no request runs."""

    def __init__(
        self,
        findings: Findings,
        config: EngineConfig,
        device: ShadowDevice,
        sessions: Conversations,
        offered: Callable[[str], int],
    ) -> None:
        """Watch a device. `offered`: request -> tokens that the index has of it now."""
        self._findings, self._device = findings, device
        self._block_size, self._outside = config.block_size, bool(config.connector)
        self._sessions, self._offered = sessions, offered
        self._begun: set[str] = set()
        if config.sessions:
            device.watch = self.launched

    def launched(self, rows: Sequence[Row]) -> None:
        """Judge the rows of later turns; first turns and other requests are not judged here."""
        for row in rows:
            if not self._sessions.later(row.request) or self._device.requests[row.request].struck:
                continue
            if row.fresh and row.request not in self._begun:
                self._begun.add(row.request)
                self._judge_start(row)
            self._judge_tokens(row)

    def _judge_start(self, row: Row) -> None:
        kept = self._sessions.kept(row.request)
        most = self._sessions.able(row.request)
        if row.start > most:
            most = max(most, self._most(row))
        self._findings.saw("a turn goes on from what its session holds", kept)
        self._findings.saw("a turn follows an aborted one", self._sessions.aborted(row.request))
        self._findings.check(
            GOES_ON,
            kept <= row.start <= most,
            lambda: (
                f"{row.request} begins at {row.start}: its session holds at least {kept} tokens of "
                f"it, and no more than {most} can be found"
            ),
            facts={"request": row.request, "kept": kept, "began": row.start},
        )

    def _most(self, row: Row) -> int:
        """Return how many tokens can be found; launches that are queued may have yet to write.

        Another tier may have all that the engine takes from it: their content is read and judged.
        """
        if self._outside:
            return row.start
        found = self._offered(row.request)
        if found < row.start:
            self._device.complete(self._device.submitted)
            found = self._offered(row.request)
        return found

    def _judge_tokens(self, row: Row) -> None:
        """Compare tokens with the complete turns and the own ones; OWN ones are the device's."""
        chain, end = self._device.requests[row.request].chain, row.start + len(row.tokens)
        chain.ensure(end)
        own = chain.tokens[row.start : end]
        pairs = enumerate(zip(row.tokens, own))  # noqa: B905 - Python 3.10, equal by make
        wrong = [at for at, (token, other) in pairs if token not in (other, OWN)]
        self._findings.check(
            GOES_ON,
            not wrong,
            lambda: (
                f"{row.request} computes token {row.tokens[wrong[0]]} at position "
                f"{row.start + wrong[0]}; its session's complete turns and its own text have "
                f"{own[wrong[0]]} there"
            ),
            facts={"request": row.request},
        )

    def ended(self, name: str, outcome: str) -> None:
        """Check that the engine aborts no turn by itself: its session runs no other one."""
        self._findings.check(
            GOES_ON,
            outcome != "abort",
            lambda: f"{name} is ended as aborted; no client aborted it, and no other turn ran",
            facts={"request": name},
        )

    def rest(
        self,
        engine: WholeEngine,
        step: Callable[[], object],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """With no request left, check what open sessions hold once `close` was called.

        No more than their histories may be held, and nothing if none is open.
        """
        close()
        for count in range(_MOST_UNTIL_REST):
            if count >= _UNTIL_CLOSED and engine.idle():
                break
            step()
        lengths = self._sessions.lengths()
        memories = {each.memory for each in self._device.memory.pools}
        most = len(memories) * sum(-(-each // self._block_size) for each in lengths.values())
        self._given_back(engine.holdings(), most, f"open sessions have {lengths} tokens")

    def _given_back(self, held: Holdings, most: int, why: str) -> None:
        self._findings.check(
            GOES_ON,
            held.total - held.free <= most,
            lambda: (
                f"{held.free} of {held.total} blocks can be handed out, with no request: {why}, "
                f"{most} blocks at most"
            ),
        )
