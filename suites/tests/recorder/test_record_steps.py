"""Steps that are written at their end: one line for all requests, nothing for those that decode."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.recorder.codec import pack
from kvproof.harness.recorder.entry import Arrival
from kvproof.harness.recorder.hooks import ATTRIBUTE
from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings
from kvproof.harness.recorder.recording import Line, apart
from kvproof.harness.recorder.verdict import judge
from kvproof.harness.recorder.vllm_steps import Steps, follow
from kvproof.suites.tests.recorder.record_kit import only
from kvproof.suites.tests.recorder.watch_kit import watcher


class Request(SimpleNamespace):
    """One of vLLM's, as far as the recorder looks."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class Engine:
    """A manager with tables that a test sets, and its recorder."""

    def __init__(self, folder: Path, *, watched: bool = False) -> None:
        self.group = SimpleNamespace(block_size=4, req_to_blocks={}, num_cached_block={})
        coordinator = SimpleNamespace(single_type_managers=[self.group])
        self.manager = SimpleNamespace(coordinator=coordinator)
        self.writer = LogWriter(
            Cache("toy", "1", 64, 4, stepped=True),
            Settings(folder, 1 << 16, watched=watched),
            lambda request, start, stop: request.tokens[start:stop],
        )
        self.steps = Steps(self.manager, self.writer)
        self.writer.look = self.steps.look
        self.requests: dict[str, Request] = {}

    def admit(self, name: str, tokens: list[int], blocks: list[int], hit: int = 0) -> None:
        count = len(tokens)
        request = Request(tokens=list(tokens), num_computed_tokens=count)
        self.requests[name] = request
        self.gives(name, *blocks)
        said = {"known": count, "hit": hit, "stop": count, "blocks": blocks}
        self.writer.admit(request, Arrival(name), **said)

    def gives(self, name: str, *blocks: int) -> None:
        table = self.group.req_to_blocks.setdefault(name, [])
        table += [SimpleNamespace(block_id=block) for block in blocks]

    def decode(self, **fresh: tuple[int, ...]) -> None:
        """A step of a token for each request; `fresh`: the blocks that some get in it."""
        self.steps.begin()
        before = []
        for name, request in self.requests.items():
            before.append(request.num_computed_tokens)
            request.tokens.append(100 + len(request.tokens))
            request.num_computed_tokens += 1
            self.gives(name, *fresh.get(name, ()))
        cached = SimpleNamespace(
            req_ids=list(self.requests),
            new_block_ids=[
                (list(fresh[name]),) if name in fresh else None for name in self.requests
            ],
            num_computed_tokens=before,
        )  # fmt: skip
        counts = dict.fromkeys(self.requests, 1)
        self.steps.end(SimpleNamespace(scheduled_cached_reqs=cached, num_scheduled_tokens=counts))


def test_requests_of_a_step_share_a_line_and_others_are_silent(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.admit("a", list(range(7)), [1, 2])
    engine.admit("b", list(range(20, 27)), [3, 4])
    engine.decode()
    engine.decode(a=(5,), b=(6,))
    lines = [line for _, line in only(tmp_path).lines()]
    assert [(line.op, line.n, line.stop) for line in lines[2:]] == [
        ("extend", 1, 9),
        ("extend", 2, 9),
    ]
    assert len(next(tmp_path.iterdir()).read_text().splitlines()) == 4
    assert judge(only(tmp_path)).broken is None


def test_a_block_that_comes_too_late_is_named(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.admit("a", list(range(8)), [1, 2])
    engine.decode()
    engine.decode(a=(5,))
    broken = judge(only(tmp_path)).broken
    assert broken is not None
    assert broken.violation.property == "table_covers_its_tokens"


@pytest.mark.parametrize(("cached", "prop"), [(2, ""), (3, "reads_return_own_content")])
def test_a_filled_block_is_written_before_it_is_hit(tmp_path: Path, cached: int, prop: str) -> None:
    """An index that is ahead of the tokens is not believed."""
    engine = Engine(tmp_path)
    engine.admit("a", list(range(7)), [1, 2, 7])
    engine.decode()
    engine.group.num_cached_block["a"] = cached
    own = [*engine.requests["a"].tokens, 1, 2, 3, 4]
    engine.admit("b", own[: 4 * cached + 1], [*[1, 2, 7][:cached], 9], hit=4 * cached)
    broken = judge(only(tmp_path)).broken
    assert (broken is not None) == bool(prop)


def test_watch_judges_and_keeps_such_lines(tmp_path: Path) -> None:
    engine = Engine(tmp_path, watched=True)
    cache = watcher(tmp_path)
    engine.admit("a", list(range(7)), [1, 2])
    engine.admit("b", list(range(20, 27)), [3, 4])
    engine.decode()
    engine.decode(a=(5,), b=(5,))
    (incident,) = cache.work(10)
    assert incident.folder is not None
    broken = judge(only(incident.folder)).broken
    assert broken is not None
    assert broken.violation.property == incident.property
    assert not cache.faults


def test_a_step_without_requests_is_no_line() -> None:
    assert list(apart(Line("steps", 0))) == []


@pytest.mark.parametrize("row", [[1], [1, 9, -1, 0], [0, 9, 0, 0], [1, 9, 2, 0, 5]])
def test_damaged_rows_are_refused(tmp_path: Path, row: list[int]) -> None:
    engine = Engine(tmp_path)
    engine.admit("a", list(range(7)), [1, 2])
    (path,) = tmp_path.iterdir()
    path.write_text(f'{path.read_text()}{{"op":"steps","t":1,"rows":"{pack(row)}"}}\n')
    with pytest.raises(UsageError, match="is damaged"):
        list(only(tmp_path).lines())


def test_a_scheduler_that_cannot_be_followed_is_left_alone() -> None:
    manager: Any = SimpleNamespace()
    scheduler = SimpleNamespace(kv_cache_manager=manager, schedule=len)
    follow(scheduler, lambda *_: None)
    assert scheduler.schedule is len
    assert not hasattr(manager, ATTRIBUTE)
