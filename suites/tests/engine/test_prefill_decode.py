"""The example of two engines, between which every request moves."""

from __future__ import annotations

import pytest

from examples import prefill_decode


def test_two_engines_answer_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    prefill_decode.main()
    first, second, *answers = capsys.readouterr().out.splitlines()
    prompt_tokens = sum(map(len, prefill_decode.PROMPTS))
    new = len(prefill_decode.PROMPTS) * (prefill_decode.NEW_TOKENS - 1)
    assert first.startswith("prefill engine: ")
    computed = [int(line.split()[2]) for line in (first, second)]
    assert sum(computed) <= prompt_tokens + new, "moved content was computed again"
    assert computed[1] > 0
    assert [line.split(": ")[1] for line in answers] == ["answer equal to that of one engine"] * 3


def test_a_full_decode_engine_leaves_requests_where_they_are() -> None:
    prefill, decode = prefill_decode.engine(), prefill_decode.engine()
    assert decode.add_request("big", [1] * 200, max_new_tokens=40) is None
    for _ in range(14):  # of 16 tokens each: 50 of 64 blocks are held
        decode.step()
    prefill.add_request("small", range(60), max_new_tokens=4)
    for _ in range(4):
        prefill.step()
    assert prefill_decode.hand_over(prefill, decode) == []
    assert "small" in prefill.scheduler.requests
    answers = prefill_decode.serve(prefill, decode)
    alone = prefill_decode.engine().generate([range(60)], max_new_tokens=4)
    assert answers["small"] == alone[0]
