"""The turns of sessions: where they begin, which tokens they compute, what stays held (Q7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.harness.contract.whole_engine import OWN, EngineConfig, Holdings, Row, WholeEngine
from kvproof.harness.whole_engine.conversations import Conversations
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import Findings

_UNTIL_CLOSED = 3
"""Steps after which no block of a closed session is held."""
GOES_ON = "a_session_goes_on_from_what_it_holds"


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
        self._block_size = config.block_size
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
        """Return how many tokens can be found; launches that are queued may have yet to write."""
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
        for _ in range(_UNTIL_CLOSED):
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
