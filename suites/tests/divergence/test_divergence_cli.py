"""`kvproof eval divergence` against scripted servers: verdicts, records, reports, refusals."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.eval.divergence.material import Pairs
from kvproof.eval.divergence.servers import learned
from kvproof.eval.run.records import read_eval
from kvproof.harness.cli.app import main
from kvproof.harness.errors import Exit
from kvproof.harness.http.completion_client import CompletionClient
from kvproof.harness.served.documented import UNKNOWN
from kvproof.suites.reference.evaluation.server import serving
from kvproof.suites.tests.divergence.completion_server import Script, Server
from kvproof.suites.tests.lab.stress.http.process import serving as kvproof_serve


@contextmanager
def servers(*scripts: Script) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Server(script))).url for script in scripts]


SMALL = {"--documents": "14", "--tokens": "4", "--length": "300", "--require": "none"}


def code_of(*arguments: str) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    output = folder / "run"
    given = [
        part for name, value in SMALL.items() if name not in arguments for part in (name, value)
    ]
    code = code_of("eval", "divergence", *given, *arguments, "--output", str(output))
    found = output / "divergence.json"
    return code, msgspec.json.decode(found.read_bytes()) if found.exists() else {}


def test_one_server_recomputes_under_salts_and_passes(tmp_path: Path) -> None:
    script = Script(noise=1e-3)
    with servers(script) as (url,):
        code, found = run(tmp_path, "--url", url)
    assert code == Exit.PASS
    (row,) = found["judgement"]["rows"]
    assert row["whole"]["hits"] >= 70
    assert row["whole"]["places"] == 84 * 4
    page = (tmp_path / "run" / "report.html").read_text()
    assert "with 95 % confidence fewer than" in page
    text = (tmp_path / "run" / "report.md").read_text()
    assert "| hit |" in text
    assert f"| not on this machine | the 5 likeliest tokens, token ids | {url} |" in text
    salts = {each.get("cache_salt") for each in script.seen}
    assert len(salts) > 100  # none is used twice


def test_an_answer_may_begin_with_a_token_that_is_no_text() -> None:
    with servers(Script(), Script(special_first=True)) as urls:
        plain, special = (learned(CompletionClient(url, retries=0)) for url in urls)
    assert special == plain
    assert special.token_ids


def test_a_second_run_recomputes_on_a_server_that_the_first_has_filled(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3)) as (url,):
        codes = [run(tmp_path / seed, "--url", url, "--seed", seed)[0] for seed in ("0", "1")]
        found = run(tmp_path / "again", "--url", url)[1]
    assert codes == [Exit.PASS, Exit.PASS]
    assert found["judgement"]["doubts"] == [], "what it recomputes again is no hit"


DRAWN = ["one-block", "partial-block", "1k", "third-use", "8-at-once"]
DRAWN += ["twins", "salt", "other-namespace", "long-beside-short", "500th"]


def test_situations_are_drawn_until_they_occur(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3)) as (url,):
        code, found = run(tmp_path, "--url", url, "--require", *DRAWN)
    (row,) = found["judgement"]["rows"]
    assert (code, row["reasons"]) == (Exit.PASS, [])
    seen = {each["situation"]: each for each in row["seen"]}
    assert set(DRAWN) <= set(seen)
    assert min(seen[name]["documents"] for name in DRAWN) >= 1, seen
    text = (tmp_path / "run" / "report.md").read_text()
    assert "not seen: 8k, 32k, longest, generated, both," in text


SLEEP = ("--sleep", "/sleep?level=1", "--sleep", "/wake")
SAME_WEIGHTS = ("--other-weights", "/weights 0", "--own-weights", "/weights 0")
WEIGHTS = ("--other-weights", "/weights 1", "--own-weights", "/weights 0")


def restart(url: str) -> tuple[str, str]:
    order = "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method='POST'))"
    place = url.removesuffix("/v1")
    return "--restart", shlex.join([sys.executable, "-c", order, f"{place}/restart"])


def test_images_are_situations_where_a_server_sees_them(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3, images=True)) as (url,):
        code, found = run(tmp_path, "--url", url, "--require", "image", "swapped-images")
    (row,) = found["judgement"]["rows"]
    assert (code, row["reasons"]) == (Exit.PASS, [])
    seen = {each["situation"]: each for each in row["seen"]}
    assert min(seen[name]["documents"] for name in ("image", "swapped-images")) >= 4, seen


def test_adapters_and_orders_are_situations_where_a_server_has_them(tmp_path: Path) -> None:
    script = Script(noise=1e-3, adapters=("tiny", "other"))
    wanted = ("adapter", "other-namespace", "sleep", "weights", "restart")
    with servers(script) as (url,):
        life = (*SLEEP, *WEIGHTS, *restart(url))
        code, found = run(tmp_path, "--url", url, *life, "--require", *wanted)
    (row,) = found["judgement"]["rows"]
    assert (code, row["reasons"]) == (Exit.PASS, [])
    seen = {each["situation"]: each for each in row["seen"]}
    assert min(seen[name]["documents"] for name in wanted) >= 4, seen
    assert {each.get("model", "") for each in script.seen} >= {"tiny", "other"}


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ({"adapter_in_key": False}, "adapter"),
        ({"image_in_key": False}, "image"),
        ({"forgets": False}, "sleep"),
        ({"forgets": False}, "weights"),
        ({"forgets": False}, "restart"),
    ],
)
def test_entries_of_another_identity_or_of_before_an_order_fail(
    tmp_path: Path, fault: dict[str, Any], wanted: str
) -> None:
    script = Script(noise=1e-3, adapters=("tiny",), images=True, **fault)
    with servers(script) as (url,):
        life = (*SLEEP, *WEIGHTS, *restart(url))
        code, found = run(tmp_path, "--url", url, *life, "--require", wanted)
    (row,) = found["judgement"]["rows"]
    assert code == Exit.FAILURE, row


def test_images_that_are_taken_for_earlier_ones_fail_also_where_recomputing_takes_them_so(
    tmp_path: Path,
) -> None:
    with servers(Script(noise=0, images=True, first_images=True)) as (url,):
        code, found = run(tmp_path, "--url", url, "--require", "image")
    (row,) = found["judgement"]["rows"]
    assert code == Exit.FAILURE, row
    assert "answered as under another identity" in row["reasons"][0]


@pytest.mark.parametrize(("refuses", "code"), [((UNKNOWN,), Exit.FAILURE), ((), Exit.INCONCLUSIVE)])
def test_salts_that_keep_nothing_apart_fail_on_a_server_that_knows_them(
    tmp_path: Path, refuses: tuple[str, ...], code: Exit
) -> None:
    """A server that takes any field may not know this one."""
    with servers(Script(noise=1e-3, salt_in_key=False, refuses=refuses)) as (url,):
        ended, found = run(tmp_path, "--url", url)
    (row,) = found["judgement"]["rows"]
    assert ended == code, row
    assert ("no request had before" in " ".join(row["reasons"])) == bool(refuses)
    assert "does not recompute" in " ".join(found["judgement"]["doubts"])


def test_an_adapter_that_changes_no_answer_shows_no_entry_of_another(tmp_path: Path) -> None:
    script = Script(adapters=("tiny",), adapters_act=False)
    with servers(script) as (url,):
        code, found = run(tmp_path, "--url", url, "--require", "adapter")
    (row,) = found["judgement"]["rows"]
    assert code == Exit.INCONCLUSIVE
    assert "8 of 8 answers stay the same, to the bit" in " ".join(row["reasons"])


def test_a_required_situation_that_time_does_not_allow_is_inconclusive(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3)) as (url,):
        code, found = run(tmp_path, "--url", url, "--require", "1000th", "--max-time", "1s")
    assert code == Exit.INCONCLUSIVE
    (row,) = found["judgement"]["rows"]
    assert "required and not seen: 1000th" in " ".join(row["reasons"])


@pytest.mark.parametrize("every", [1, 8])
def test_wrong_hits_fail(tmp_path: Path, every: int) -> None:
    with servers(Script(noise=1e-3, wrong_every=every)) as (url,):
        code, found = run(tmp_path, "--url", url)
    assert code == Exit.FAILURE
    (row,) = found["judgement"]["rows"]
    assert row["whole"]["beyond"] >= row["whole"]["hits"] // every - 5


def test_an_exact_server_must_be_exact(tmp_path: Path) -> None:
    with servers(Script()) as (url,):
        assert run(tmp_path / "a", "--url", url, "--exact")[0] == Exit.PASS
    with servers(Script(wrong_every=30, shift=1e-7)) as (url,):
        assert run(tmp_path / "b", "--url", url, "--exact")[0] == Exit.FAILURE


def judged(script: Script) -> int:
    """Requests of the judged side: those without a salt, longer than those that find abilities."""
    return sum(len(each.get("prompt", "")) > 1 and "cache_salt" not in each for each in script.seen)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script(salted=True), "answers depend on cache_salt"),
        (Script(noise=1e-9), "recomputed answers to one prompt differ"),
    ],
    ids=["salt", "server"],
)
def test_an_exact_run_names_what_changes_recomputed_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: Script, words: str
) -> None:
    with servers(script) as (url,):
        code, found = run(tmp_path, "--url", url, "--exact")
    assert (code, found["judgement"]["rows"]) == (Exit.INCONCLUSIVE, [])
    assert words in found["judgement"]["doubts"][0]
    assert words in " ".join(capsys.readouterr().out.split())
    assert not judged(script), "nothing is judged against answers that do not repeat"


def test_a_server_without_salts_that_does_not_repeat_is_named(tmp_path: Path) -> None:
    with servers(Script(), Script(cache=False, noise=1e-9)) as (url, other):
        code, found = run(tmp_path, "--url", url, "--recompute-url", other, "--exact")
    assert code == Exit.INCONCLUSIVE
    assert "recomputed: recomputed answers to one prompt" in found["judgement"]["doubts"][0]


@pytest.mark.parametrize("option", ["--reset", "--recompute-url"])
def test_an_exact_run_needs_no_salts_that_change_nothing(tmp_path: Path, option: str) -> None:
    with servers(Script(salted=True), Script(cache=False, salted=True)) as (url, other):
        given = other if option == "--recompute-url" else "/reset"
        assert run(tmp_path, "--url", url, "--exact", option, given)[0] == Exit.PASS


def test_our_own_server_is_exact(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    with kvproof_serve("--model", "symbolic") as server:
        assert run(tmp_path, "--url", f"{server.url}/v1", "--exact")[0] == Exit.PASS


def test_texts_and_resets_do_where_ids_and_salts_are_missing(tmp_path: Path) -> None:
    script = Script(noise=1e-3, ids=False, salt=False)
    with servers(script) as (url,):
        code, found = run(tmp_path, "--url", url, "--reset", "/reset", "--documents", "16")
    assert (code, found["servers"][0]["abilities"]["token_ids"]) == (Exit.PASS, False)


def test_a_server_without_cache_recomputes(tmp_path: Path) -> None:
    judged = Script(noise=1e-3, salt=False)
    with servers(judged, Script(cache=False, noise=1e-3), Script(cache=False, noise=1e-3)) as urls:
        more = ("--recompute-url", urls[1], "--control-url", urls[2])
        code, found = run(tmp_path, "--url", urls[0], *more)
    assert code == Exit.PASS
    assert [each["name"] for each in found["judgement"]["floor"]] == [
        "recomputed, again", "recomputed, together", "control 1, again",
    ]  # fmt: skip


def test_long_prompts_lose_their_middle(tmp_path: Path) -> None:
    script = Script(noise=1e-3, most_prompt=2500)
    with servers(script) as (url,):
        assert run(tmp_path, "--url", url)[0] == Exit.PASS


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (Script(salt=False), (), "--recompute-url"),
        (Script(fails_after=0), (), "completes nothing"),
        (Script(), ("--documents", "0"), "--documents 0"),
        (Script(), ("--alpha", "2"), "--alpha 2"),
        (Script(), ("--config", "missing.toml"), "one of them"),
        (Script(salt=False), ("--reset", "/v2"), "POST /v2"),
        (Script(), ("--sleep", "/v2", "--require", "sleep"), "sleep: POST /v2"),
        (Script(), ("--restart", "false", "--require", "restart"), "restart: Command"),
        (Script(), ("--restart", "'", "--require", "restart"), "--restart: No closing"),
        (Script(), (*SAME_WEIGHTS, "--require", "weights"), "answers as before"),
        (Script(), WEIGHTS[:2], "other weights without own ones"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    script: Script,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    with servers(script) as (url,):
        code, _ = run(tmp_path, "--url", url, *arguments)
    assert code == Exit.USAGE
    assert words in capsys.readouterr().err


def test_a_server_that_stops_answering_is_inconclusive(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3, fails_after=230)) as (url,):
        code, found = run(tmp_path, "--url", url)
    assert code == Exit.INCONCLUSIVE
    assert found["lost"]


def test_answers_are_samples_as_those_of_every_evaluation(tmp_path: Path) -> None:
    with servers(Script(noise=1e-3)) as (url,):
        run(tmp_path, "--url", url)
    found = read_eval(tmp_path / "run").samples
    counts = Counter((each.configuration, each.phase) for each in found)
    assert counts["recomputed", "recomputed"] == counts["recomputed", "again"] == 56
    assert counts["hit", "warm"] == counts["hit", "together"] == 14
    assert {(e.differences is None, e.phase == "recomputed", e.tries) for e in found} == {
        (True, True, 1), (False, False, 1),
    }  # fmt: skip


def test_a_prompt_that_the_base_did_not_answer_is_compared_with_nothing(tmp_path: Path) -> None:
    learned = 7 + 28  # requests of one token: the server's options, and the ids of 28 texts
    with servers(Script(noise=1e-3, fails_at=learned + 6)) as (url,):
        code, found = run(tmp_path, "--url", url)
    assert code == Exit.INCONCLUSIVE
    assert [each["message"] for each in found["lost"]] == [
        'refused: 400 {"error": {"message": "no more"}}'
    ]
    missing = read_eval(tmp_path / "run").samples
    lost = next(each for each in missing if each.outcome != "answered")
    assert [each.phase for each in missing if (each.id, each.domain) == (lost.id, lost.domain)] == [
        "recomputed"
    ]


def test_an_interrupted_run_goes_on_with_other_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part has seen a situation, so that only the other one is brought about."""
    whole = Pairs._judged

    def cut(self: Pairs) -> Iterator[Any]:
        yield from itertools.islice(whole(self), 17)
        raise KeyboardInterrupt

    with servers(Script(noise=1e-3)) as (url,):
        given = ("--url", url, "--require", "one-block", "100th")
        monkeypatch.setattr(Pairs, "_judged", cut)
        assert run(tmp_path, *given)[0] == Exit.INTERRUPTED
        before = read_eval(tmp_path / "run").samples
        monkeypatch.setattr(Pairs, "_judged", whole)
        code, found = run(tmp_path, *given)
    (row,) = found["judgement"]["rows"]
    assert (code, row["reasons"]) == (Exit.PASS, [])
    kept = [each for each in before if each.configuration == "hit"]
    after = [e for e in read_eval(tmp_path / "run").samples if e.configuration == "hit"]
    assert len({each.id for each in after}) > len({each.id for each in kept}) + 14 - 1
    assert row["whole"]["answers"] > sum(each.differences is not None for each in kept) + 70


def test_a_recorded_run_is_rendered_again_and_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with servers(Script(noise=1e-3)) as (url,):
        run(tmp_path, "--url", url)
        assert run(tmp_path, "--url", url)[0] == Exit.USAGE
    page = tmp_path / "run" / "report.html"
    page.unlink()
    assert code_of("report", str(tmp_path / "run")) == Exit.PASS
    assert page.exists()
    assert "PASS" in capsys.readouterr().out
