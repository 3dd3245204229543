"""Every malformed request gets a 4xx with its reason, and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.tests.lab.stress.http.malformed import Malformed, cases
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.serve.serve_kit import SMALL, completion

CASES = cases("symbolic", max_len=512, max_tokens=400, max_body_bytes=65536)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(*SMALL) as running:
        before = completion(running)
        yield running
        after = completion(running)
        assert after["choices"] == before["choices"]
        assert running.metrics()['kvproof_blocks{owner="held"}'] == 0
        assert running.end() == 0
        assert running.errors() == ""


def test_there_are_many_kinds() -> None:
    assert len({each.name for each in CASES}) == len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused_with_the_reason(server: Server, case: Malformed) -> None:
    headers = {"content-type": case.content_type} if case.content_type else {}
    reply = server.send(case.method, case.path, case.body or None, headers=headers)
    assert reply.status == case.status, reply
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert case.reported in error["message"], error
    assert "Traceback" not in error["message"]
    assert len(error["message"]) < 400
    if case.param:
        assert error["param"] == case.param, error
