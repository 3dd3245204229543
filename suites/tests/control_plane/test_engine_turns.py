"""Sessions of an engine: a sound one passes, each way to break a session is found by its property.

The toy keeps blocks of a conversation between turns; an aborted turn gives all of them back.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, Output
from kvproof.harness.whole_engine.conversations import GOES_ON
from kvproof.harness.whole_engine.driver import Driver
from kvproof.suites.tests.whole_engine.toy_engine import Running, ToyEngine
from kvproof.suites.whole_engine.properties import AFTER_ABORT, CLOSED, PROPERTIES, TURNED


class TalkingToy(ToyEngine):
    """The toy with sessions."""

    def __init__(self, *given: Any, fault: str) -> None:
        super().__init__(*given, fault=fault)
        self.kept: dict[str, tuple[list[int], int]] = {}
        self.gone: list[str] = []
        """Aborted since the last step."""
        self.left: dict[str, list[int]] = {}
        """Session -> text of an aborted turn, which only one fault takes up."""

    def submit(self, request: EngineRequest) -> None:
        run = Running(request, list(request.prompt))
        if self.fault == "aborted text stays":
            run.tokens[request.history : request.history] = self.left.get(request.session, [])
        self.running[request.id] = run

    def abort(self, request: str) -> None:
        run = self.running.pop(request)
        own = run.request
        if own.session and len(run.tokens) == len(own.prompt) + own.answers:
            computed = run.computed + 3 * (self.fault == "counts more")
            self.kept[own.session] = run.blocks, computed * (self.fault != "forgets")
            return
        self.gone.append(request)
        self.left[own.session] = list(own.prompt[own.history :])
        self._release(run)

    def _match(self, run: Running) -> None:
        run.blocks, run.computed = self.kept.pop(run.request.session, ([], 0))
        if not run.blocks:
            super()._match(run)

    def _release(self, run: Running) -> None:
        super()._release(run)
        for blocks, _ in self.kept.values():
            for block in blocks:
                self.free.pop(block, None)

    def step(self) -> list[Output]:
        if self.fault == "stays busy":
            talking = [each for each in self.running.values() if each.request.session in self.left]
            for run in talking:
                self.abort(run.request.id)
        ended, self.gone = [Output(name, (), "abort") for name in self.gone], []
        return [*ended, *super().step()]

    def idle(self) -> bool:
        return not self.gone and super().idle()

    def close_session(self, session: str) -> None:
        blocks, _ = self.kept.get(session, ([], 0))
        if self.fault != "stays open":
            self.kept.pop(session, None)
            self._release(Running(EngineRequest("", ()), [], blocks))


TURNS = (
    ("submit", {"id": "r0", "family": 0, "shared": 8, "own": 2, "answers": 4, "session": "s"}),
    ("step", {"count": 9}),
    ("submit", {"id": "r1", "family": 1, "shared": 0, "own": 3, "answers": 4, "session": "s"}),
    ("step", {"count": 9}),
    ("submit", {"id": "r2", "family": 1, "shared": 0, "own": 1, "answers": 9, "session": "s"}),
    ("step", {}),
    ("abort", {}),
    ("step", {}),
    ("submit", {"id": "r3", "family": 2, "shared": 0, "own": 2, "answers": 4, "session": "s"}),
    ("step", {"count": 9}),
    ("drain", {}),
)


def talked(fault: str = "") -> Driver:
    config = EngineConfig(blocks=40, block_size=4, sessions=True)
    made = Driver(partial(TalkingToy, fault=fault), config)
    for verb, keywords in TURNS:
        made.apply(verb, keywords)
    return made


def test_a_sound_session_breaks_nothing_and_comes_into_every_situation():
    made = talked()
    assert made.findings.wrong is None
    assert made.findings.checks[GOES_ON] > 4
    own = next(each for each in PROPERTIES if each.name == GOES_ON)
    assert set(own.situations) == {TURNED, AFTER_ABORT, CLOSED} <= set(made.findings.situations)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("forgets", "r1 begins at 0: its session holds at least 13 tokens"),
        ("counts more", "r1 begins at 16: .* no more than 14 can be found"),
        ("aborted text stays", "r3 computes token .* at position"),
        ("stays busy", "r3 is ended as aborted"),
        ("stays open", "open sessions have {} tokens, 0 blocks at most"),
    ],
)
def test_a_broken_session_is_found(fault, sentence):
    wrong = talked(fault).findings.wrong
    assert wrong is not None
    assert wrong.property == GOES_ON
    assert re.search(sentence, wrong.sentence)
