"""SCBench: its files, its scores, and hits that are paired with recomputed answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.eval.run.config import Protocol, read_config
from kvproof.eval.run.protocol import Exchange, Stage
from kvproof.eval.run.records import SampleRecord, Usage, read_eval
from kvproof.eval.scbench.data import (
    TASKS,
    Session,
    Task,
    Turn,
    file_of,
    read_sessions,
)
from kvproof.eval.scbench.judge import judge
from kvproof.eval.scbench.miniature import TURNS, miniature
from kvproof.eval.scbench.protocol import Sessions
from kvproof.eval.scbench.records import Options
from kvproof.eval.scbench.tasks import question, score, shared_part
from kvproof.harness.errors import UsageError
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.evaluation.eval_kit import record

CONFIG = Path(__file__).parents[3] / "eval" / "configs" / "scbench.toml"


def written(folder: Path, sessions: int, *, seed: int = 0) -> list[Session]:
    """Write the miniature as the public files."""
    made = miniature(TASKS, sessions, seed=seed)
    for each in made:
        row = {"id": each.id, "context": each.context, "multi_turns": each.turns}
        with file_of(folder, each.task).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    return made


def test_the_miniature_has_the_public_format(tmp_path: Path) -> None:
    made = written(tmp_path, 2, seed=1)
    row = json.loads(file_of(tmp_path, "vt").read_text().splitlines()[0])
    assert sorted(row) == ["context", "id", "multi_turns"]
    assert read_sessions(tmp_path, TASKS, most=9) == made == miniature(TASKS, 2, seed=1)
    assert [each.task for each in made] == [task for task in TASKS for _ in range(2)]
    assert {len(each.turns) for each in made} == {TURNS}


@pytest.mark.parametrize("task", TASKS)
def test_answers_stand_in_the_context_and_score_one(task: Task) -> None:
    for session in miniature((task,), 3):
        for turn in session.turns:
            assert all(each in session.context for each in turn.answers)
            letter = "ABCD"[turn.options.index(turn.answers[0])] if turn.options else ""
            right = f"The correct answer is ({letter})" if letter else ", ".join(turn.answers)
            assert score(task, right, turn) == 1
            assert score(task, "nothing of it", turn) == 0
            assert session.context not in question(task, turn)
        assert session.context in shared_part(session)


CHOICES = Turn(input="Who?", answer="Eve", options=("Adam", "Eve", "Noah", "Abel"))
NAMES = Turn(input="Which?", answer=("AAA", "BBB", "CCC", "DDD"))


@pytest.mark.parametrize(
    ("task", "text", "turn", "expected"),
    [
        ("choice_eng", "B", CHOICES, 1),
        ("choice_eng", " B. Eve", CHOICES, 1),
        ("choice_eng", "Eve", CHOICES, 1),
        ("choice_eng", "I say the answer is (B)", CHOICES, 1),
        ("choice_eng", "first (A) x (B) y! The correct answer is (B)", CHOICES, 1),
        ("choice_eng", "A", CHOICES, 0),
        ("choice_eng", "", CHOICES, 0),
        ("vt", "aaa, ccc", NAMES, 0.5),
        ("kv", "it is 1f", Turn(input="?", answer="1f"), 1),
        ("kv", "it is 1F", Turn(input="?", answer="1f"), 0),
    ],
)
def test_scores(task: Task, text: str, turn: Turn, expected: float) -> None:
    assert score(task, text, turn) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "c"}, "multi_turns"),
        ({"context": "c", "multi_turns": []}, "multi_turns is empty"),
        ({"context": "c", "multi_turns": [{"input": "?", "answer": 7}]}, "answer"),
        (
            {"context": "c", "multi_turns": [{"input": "?", "answer": "x", "options": ["a"] * 4}]},
            "no four options with the answer among them",
        ),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file_of(tmp_path, "choice_eng").write_text(json.dumps(row))
    with pytest.raises(UsageError, match=rf"row 0: .*{message}") as caught:
        read_sessions(tmp_path, ("choice_eng",), most=1)
    assert "microsoft/SCBench" in caught.value.hint


def cached(tokens: int) -> Usage:
    return Usage(prompt_tokens=100, cached_tokens=tokens)


def answers(name: str, level: str, count: int, **other: Any) -> list[SampleRecord]:
    fields: dict[str, Any] = {
        "configuration": name, "phase": level or "recomputed", "domain": "kv", "text": "t",
        "sub_domain": "turns", "turn": 1, "answer": "1.0",
        "usage": cached(90 if level else 0),
    }  # fmt: skip
    return [record(n, **(fields | other), prompt_sha256=str(n)) for n in range(count)]


def rows_of(
    found: list[SampleRecord], rule: str = "answers", *, exact: bool = False
) -> dict[str, Any]:
    config = read_config(CONFIG)
    config = type(
        config
    )(
        judge=type(config.judge)(rule=rule, exact=exact),  # type: ignore[arg-type]
        configuration=config.configuration[:3],
    )
    options = Options(tasks=("kv",), modes=("turns",), sessions=1, config=config)
    return {row.level: row for row in judge(options, found, [])}


BOTH = [*answers("off", "", 40), *answers("off again", "", 40)]
LEVEL = "1 at once"


def test_equal_answers_pass_within_the_margin_and_few_are_inconclusive() -> None:
    assert rows_of([*BOTH, *answers("on", LEVEL, 40)])[LEVEL].verdict == "pass"
    few = rows_of([*BOTH, *answers("on", LEVEL, 20)])[LEVEL]
    assert (few.contexts, few.bound) == (20, pytest.approx(1 - 0.05 ** (1 / 20)))
    assert (few.verdict, "may be lost" in few.reasons[0]) == ("inconclusive", True)


def test_bounds_count_hits_by_context() -> None:
    """Misses, and the turns of one context, are no further evidence."""
    missed = answers("on", LEVEL, 40, usage=cached(0))[20:]
    half = rows_of([*BOTH, *answers("on", LEVEL, 20), *missed])[LEVEL]
    assert (half.pairs, half.contexts, half.verdict) == (40, 20, "inconclusive")
    turns = [replace(each, id=f"s{each.number // 4}") for each in answers("on", LEVEL, 40)]
    found = rows_of([*BOTH, *turns])[LEVEL]
    assert (found.pairs, found.contexts, found.verdict) == (40, 10, "inconclusive")


def test_texts_that_all_change_do_not_pass_while_the_score_stays() -> None:
    noisy = answers("off again", "", 40, text="third")
    some = [*answers("on", LEVEL, 36), *answers("on", LEVEL, 40, text="other")[36:]]
    found = rows_of([*BOTH, *some])[LEVEL]
    assert found.verdict == "inconclusive"
    assert found.reasons[-1].startswith("texts of up to 21.4 % of contexts change beyond")
    assert rows_of([*BOTH[:40], *noisy, *some])[LEVEL].verdict == "pass"


def test_a_load_shows_what_was_reached() -> None:
    def at(level: str, apart: float) -> str:
        made = [
            replace(each, started=apart * (each.number // 8), seconds=1.0)
            for each in answers("on", level, 40)
        ]
        label: str = rows_of([*BOTH, *made])[level].label
        return label

    assert at("64 at once", 2.0) == "64 at once (8 reached)"
    assert at("8 at once", 2.0) == "8 at once"
    assert at("64 at once", 0.0) == "64 at once (40 reached)"


def test_changed_answers_fail_unless_recomputing_changes_as_many() -> None:
    changed = answers("on", LEVEL, 40, text="other")
    assert rows_of([*BOTH, *changed])[LEVEL].verdict == "fail"
    noisy = [*BOTH[:40], *answers("off again", "", 40, text="third")]
    assert rows_of([*noisy, *changed])[LEVEL].verdict == "pass"
    lost = answers("on", LEVEL, 40, answer="0.0")
    assert rows_of([*noisy, *lost], "accuracy")[LEVEL].verdict == "fail"


def test_an_exact_engine_gets_no_allowance_for_near_ties() -> None:
    some = [*answers("on", LEVEL, 39), *answers("on", LEVEL, 40, text="other")[39:]]
    assert rows_of([*BOTH, *some])[LEVEL].verdict == "inconclusive", "it may be a near tie"
    found = rows_of([*BOTH, *some], exact=True)[LEVEL]
    assert (found.verdict, "1 text changed, and the engine promises" in found.reasons[0]) == (
        "fail", True,
    )  # fmt: skip
    noisy = [*BOTH[:79], *answers("off again", "", 40, text="third")[39:], *some]
    assert rows_of(noisy, exact=True)[LEVEL].verdict == "inconclusive"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([*BOTH, *answers("on", LEVEL, 40, usage=cached(0))], "only 0 of 40 later prompts"),
        ([*BOTH, *answers("on", LEVEL, 40, outcome="timeout")], "40 pairs without an answer"),
        (
            [*answers("off", "", 40, usage=cached(9)), *BOTH[40:], *answers("on", LEVEL, 40)],
            "40 recomputed prompts hit a cache that is said to be off",
        ),
    ],
)
def test_no_evidence_is_inconclusive(found: list[SampleRecord], reason: str) -> None:
    row = rows_of(found)[LEVEL]
    assert row.verdict == "inconclusive"
    assert any(each.startswith(reason) for each in row.reasons)


FAULTY = """
[[configuration]]
name = "wrong block"
[configuration.server]
launch = ["{python}", "-m", "kvproof.suites.faults.eval_server", "wrong-block", "serve", "--model",
  "{model}", "--port", "{port}", "--block-size", "16"]
"""


@pytest.mark.nightly(reason="four servers; its parts are tested fast")
@pytest.mark.slow(reason="starts four servers: 10 s of CPU")
def test_an_exact_cache_passes_every_load_and_wrong_blocks_fail(tmp_path: Path) -> None:
    text = CONFIG.read_text().replace('[[configuration]]\nname = "on small cache"\n', "")
    text = text.replace('arguments = ["--num-blocks", "1024"]\n', "") + FAULTY
    (tmp_path / "config.toml").write_text(text)
    command = ("eval", "scbench", "--config", "config.toml", "--model", "symbolic", "--sessions")
    written(tmp_path, 2)
    done = here(*command, "2", "--data", ".", "--output", "run", cwd=tmp_path)
    assert done.code == 1, done
    assert "SCBench files" in done.out
    assert "contexts with hits at" in done.out
    found = json.loads((tmp_path / "run" / "comparison.json").read_text())
    verdicts = {(row["configuration"], row["level"]): row["verdict"] for row in found["rows"]}
    assert {verdict for (name, _), verdict in verdicts.items() if name == "on"} == {"inconclusive"}
    assert {row["reached"] for row in found["rows"] if row["level"] == "64 at once"} == {8}
    assert "fail" in {verdict for (name, _), verdict in verdicts.items() if name != "on"}
    assert {each["mode"] for each in found["scores"]} == {"turns", "requests"}
    answered = read_eval(tmp_path / "run").samples
    last = [each for each in answered if each.sub_domain == "turns" and each.turn]
    assert all(each.usage.cached_tokens for each in last if each.configuration == "on")
    again = here(*command, "2", "--data", ".", "--output", "run", cwd=tmp_path)
    refused(again, "holds a run", "another --output")
    refused(here(*command, "0", "--output", "new", cwd=tmp_path), "0 sessions", "--sessions 16")


class Client:
    """Answers every prompt with a count, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def chat(self, messages: Any, **_: Any) -> Any:
        self.asked.append(messages)
        return SimpleNamespace(text=f"answer {len(self.asked)}")


def test_a_judged_server_gets_every_load_and_the_others_exactly_its_prompts() -> None:
    config = read_config(CONFIG)
    sessions = Sessions(config, miniature(("kv",), 2), ("turns",))
    names = [one.name for one in sessions.order(config)]
    assert names == ["on", "on small cache", "off", "off again"]
    client, stages = Client(), sessions.begin("on", config.protocol)
    assert [stage.at_once for stage in stages] == [1, 8, 64, 8, 8]
    firsts = [[sessions.sample(job[0]).id for job in stage.jobs] for stage in stages[-2:]]
    assert firsts[1] == firsts[0][::-1]  # every second turn in reverse
    asked = _asked(sessions, stages, client)
    first, second = client.asked[:2]
    assert second[:2] == (*first, {"role": "assistant", "content": "answer 1"})
    assert [each.turn for each in asked[:4]] == [0, 1, 0, 1]
    for name, at_once in (("off", 1), ("off again", 8)):
        again, (stage,) = Client(), sessions.begin(name, config.protocol)
        assert stage.at_once == at_once
        once_more = _asked(sessions, [stage], again)
        assert {each.prompt for each in once_more} == {each.prompt for each in asked}
        assert len(again.asked) == len(client.asked) == 2 * 2 * 4


def _asked(sessions: Sessions, stages: list[Stage], client: Client) -> list[Exchange]:
    requests = [request for stage in stages for job in stage.jobs for request in job]
    return [sessions.ask(client, each, Protocol()) for each in requests]  # type: ignore[arg-type]
