"""The engine's thread: events of orders, cancelling, and models that fail."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.request_queue import ScheduledRequest
from kvproof.reference.model.interface import Sample, Work
from kvproof.reference.server.engine_loop import Answer, EngineLoop, Event, ServedRequest
from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.language.language import SamplingOptions
from kvproof.reference.server.language.symbolic_text import SymbolicText
from kvproof.reference.server.writer import Piece, Writer
from kvproof.suites.tests.patience import LONG

CACHE = CacheConfig(33, block_size=4, cache_partial_blocks=True)


class Faulty:
    """A model whose steps raise while `broken` names their verb; a step may be held up."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.broken = ""
        self.may_run = threading.Event()
        self.may_run.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def launch(self, step: int, works: Sequence[Work]) -> None:
        assert self.may_run.wait(LONG)
        if self.broken == "launch":
            raise RuntimeError("no kernel image")
        self._model.launch(step, works)

    def finish(self, step: int) -> Mapping[str, Sample]:
        if self.broken == "finish":
            raise RuntimeError("device lost")
        samples: Mapping[str, Sample] = self._model.finish(step)
        return samples


class RunningLoop:
    def __init__(self, **options: Any) -> None:
        self.language = SymbolicText(CACHE, max_len=64)
        self.model = Faulty(self.language.model)
        self.engine = Engine(EngineConfig(CACHE, **options), self.model)
        self.events: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
        self.loop = EngineLoop(self.engine, self.language, self._take)

    def _take(self, events: Sequence[tuple[str, Event]]) -> None:
        for event in events:
            self.events.put(event)

    def order(self, name: str, prompt: str = "a prompt", *, most: int = 5) -> ServedRequest:
        return ServedRequest(
            name, self.language.prepare_text(prompt), SamplingOptions(), most, ignore_ends=True
        )

    def ends(self, count: int) -> dict[str, Event]:
        """The last events of so many orders."""
        ends: dict[str, Event] = {}
        while len(ends) < count:
            name, event = self.events.get(timeout=LONG)
            if isinstance(event, ApiError) or event.finish:
                ends[name] = event
        return ends

    def between_steps(self, question: Any) -> Any:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.loop.between_steps(lambda: answers.put(question()))
        return answers.get(timeout=LONG)

    def held(self) -> int:
        held: int = self.between_steps(lambda: self.engine.cache.usage().held)
        return held


@contextmanager
def running_loop(**options: Any) -> Iterator[RunningLoop]:
    made = RunningLoop(**options)
    made.loop.start()
    try:
        yield made
    finally:
        made.model.may_run.set()
        made.loop.stop()


def reported(event: Event) -> str:
    assert isinstance(event, ApiError)
    return f"{event.status} {event}"


def test_orders_are_answered_as_by_the_engine_alone() -> None:
    with running_loop() as running:
        running.loop.submit([running.order(str(index), f"prompt {index}") for index in range(9)])
        running.ends(9)
        assert +running.loop.outcomes == {"completed": 9}
        assert running.held() == 0
        assert running.engine.decisions() == []


def test_the_thread_sleeps_while_nobody_asks() -> None:
    with running_loop() as running:
        running.loop.submit([running.order("a")])
        running.ends(1)
        steps = running.between_steps(lambda: running.engine.scheduler._step)
        assert running.between_steps(lambda: running.engine.scheduler._step) == steps


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("verb", ["launch", "finish"])
def test_a_failing_step_fails_who_took_part(
    verb: str, in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    with running_loop(steps_in_flight=in_flight) as running:
        running.loop.submit([running.order("before")])
        good = running.ends(1)["before"]
        running.model.broken = verb
        running.loop.submit([running.order("a"), running.order("b", "another prompt")])
        ends = running.ends(2)
        assert all(
            reported(event).startswith("500 the model failed: RuntimeError")
            for event in ends.values()
        )
        assert running.loop.failing
        assert running.held() == 0
        running.model.broken = ""
        running.loop.submit([running.order("before")])
        again = running.ends(1)["before"]
        assert isinstance(good, Piece)
        assert isinstance(again, Piece)
        assert again.text == good.text
        assert running.between_steps(lambda: running.loop.failing) == ""
        assert running.loop.failures >= 1
        assert +running.loop.outcomes == {"completed": 2, "failed": 2}
    assert "a step has failed" in caplog.text


def test_whoever_waits_survives_the_step_of_others(caplog: pytest.LogCaptureFixture) -> None:
    with running_loop(max_batch_tokens=8) as running:
        running.model.may_run.clear()
        running.model.broken = "launch"
        running.loop.submit([running.order("takes part", "12345678")])
        running.loop.submit([running.order("comes later")])
        running.model.may_run.set()
        ends = running.ends(2)
        assert reported(ends["takes part"]).startswith("500")
    assert "a step has failed" in caplog.text


def test_an_engine_in_which_nothing_can_run_hangs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with running_loop() as running:
        # a pin holds what the request needs, and nobody would ever let go of it
        def pin() -> None:
            cache = running.engine.cache
            step = cache.begin_step()
            cache.admit("pinned", list(range(1, 129)))
            cache.end_step(step)
            cache.pin("pin", list(range(1, 129)))
            cache.release("pinned")

        running.loop.between_steps(pin)
        running.loop.submit([running.order("a")])
        assert "nothing can run" in reported(running.ends(1)["a"])
        running.between_steps(lambda: running.engine.cache.unpin("pin"))
        running.loop.submit([running.order("b")])
        assert isinstance(running.ends(1)["b"], Piece)
    assert "a step has failed" in caplog.text


def test_a_dead_engine_answers_everybody(caplog: pytest.LogCaptureFixture) -> None:
    with running_loop() as running:

        def die() -> None:
            raise ZeroDivisionError("in the control plane")

        running.model.may_run.clear()
        running.loop.submit([running.order("a"), running.order("b")])
        running.loop.between_steps(die)
        running.model.may_run.set()
        assert all(reported(event).startswith("500") for event in running.ends(2).values())
        running.loop.submit([running.order("late")])
        assert reported(running.ends(1)["late"]).startswith("500")
        assert running.loop.dead == "ZeroDivisionError: in the control plane"
    assert "the engine has died" in caplog.text


def test_a_fault_of_the_language_fails_one_order_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute:
        def add(self, token: int) -> str:
            raise OverflowError("no such token")

        def end(self) -> str:
            return ""

    with running_loop() as running:
        good = running.language.detokenizer
        made = iter([Mute(), good(), good(), good()])
        monkeypatch.setattr(running.language, "detokenizer", lambda: next(made))
        running.loop.submit([running.order("a"), running.order("b")])
        ends = running.ends(2)
        assert reported(ends["a"]).startswith("500 the model failed: OverflowError")
        assert isinstance(ends["b"], Piece)

        def begin(*_: object) -> None:
            raise KeyError("a fault")

        with monkeypatch.context() as patched:
            patched.setattr(running.language, "begin", begin)
            running.loop.submit([running.order("c")])
            assert reported(running.ends(1)["c"]).startswith("500")
        running.loop.submit([running.order("d")])
        assert isinstance(running.ends(1)["d"], Piece)
        assert running.held() == 0
        assert not running.loop.dead
    assert "an answer cannot be written" in caplog.text


def test_cancelled_orders_tell_nothing_more_and_hold_nothing() -> None:
    with running_loop() as running:
        running.model.may_run.clear()
        running.loop.submit([running.order("a", most=50), running.order("b")])
        running.loop.cancel(["a", "unknown"])
        running.loop.cancel(["a"])
        running.model.may_run.set()
        ends = running.ends(1)
        assert set(ends) == {"b"}
        assert running.held() == 0
        assert +running.loop.outcomes == {"completed": 1, "cancelled": 1}


def test_orders_that_never_fit_are_refused_with_the_numbers() -> None:
    with running_loop() as running:
        running.loop.submit([running.order("a", "p" * 100, most=60)])
        assert reported(running.ends(1)["a"]) == (
            "400 100 prompt tokens and 60 of the answer need 40 blocks, the whole cache has 32; "
            "ask for less"
        )
        assert +running.loop.outcomes == {"refused": 1}


def test_stopping_ends_what_is_under_way() -> None:
    with running_loop() as running:
        running.loop.submit([running.order("a", most=60)])
        running.loop.stop()
        assert running.engine.cache.usage().held == 0
        running.loop = EngineLoop(running.engine, running.language, running._take)
        running.loop.start()


def counted(*kinds: type) -> int:
    gc.collect()
    return sum(type(each) in kinds for each in gc.get_objects())


@pytest.mark.slow(reason="starts processes and waits for them")
def test_nothing_is_kept_of_requests_that_have_ended() -> None:
    kinds = (ScheduledRequest, Answer, Writer, ServedRequest)
    before = counted(*kinds)
    with running_loop() as running:
        for turn in range(20):
            names = [f"{turn} {index}" for index in range(20)]
            running.loop.submit([running.order(name, name * 2, most=9) for name in names])
            running.loop.cancel(names[::3])
            running.ends(20 - len(names[::3]))
        running.loop.submit([running.order("last")])
        running.ends(1)
        assert running.engine.scheduler.decisions == []
        assert running.between_steps(lambda: counted(*kinds)) == before
