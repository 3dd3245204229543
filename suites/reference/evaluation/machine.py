"""Requests, prompts and pairs of answers, with their expected results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.truncate import BYTES, Truncation
from kvproof.eval.run.config import Configuration, Judge
from kvproof.eval.run.records import SampleRecord
from kvproof.eval.verdict.pairs import Flip, Row, Sides, make_row, one_each
from kvproof.harness.http.completion import Usage
from kvproof.harness.http.completion_client import CompletionClient
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.evaluation import properties as seen
from kvproof.suites.reference.evaluation.server import PreparedAnswer, running

OUTCOMES = {200: "answered", 400: "refused", 500: "server_error"}
LETTERS = "ABCD"
INVALID: Final = "invalid"
"""An answer that names no letter."""
FAILED: Final = "timeout"
"""No answer at all."""


class EvaluationMachine:
    """Every operation is one request, one prompt or one comparison; there is no state."""

    def __init__(self, _: Config, coverage: Coverage) -> None:
        self._coverage = coverage

    def apply(self, verb: str, **arguments: Any) -> object:
        """Send a request, cut a prompt or compare; returns the result."""
        return getattr(self, f"_{verb}")(**arguments)

    # --- E1, E2: one request ---

    def _ask(
        self,
        *,
        prompt: str,
        common: dict[str, int],
        own: dict[str, int],
        stream: bool,
        status: int,
        text: str,
        cached: int,
    ) -> object:
        server, details = running(), {"cached_tokens": cached}
        counts = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": details}
        server.prepared = PreparedAnswer(status, text, "stop", counts)
        reply = CompletionClient(server.url, retries=0, stream=stream, fields=common).ask(
            prompt, **own
        )
        self._cover_request(common, own, stream=stream, status=status)
        wanted: dict[str, object] = {**common, **own}
        wanted["messages"] = [{"role": "user", "content": prompt}]
        if stream:
            wanted |= {"stream": True, "stream_options": {"include_usage": True}}
        sent = ("/v1/chat/completions", wanted)
        self._coverage.equal("requests_have_what_was_set", server.received, sent, "the request is")
        usage = Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=cached)
        expected = (text, "stop", usage) if status == 200 else ("",)
        found = (reply.text, reply.finish_reason, reply.usage)[: len(expected)]
        self._coverage.check(
            "answers_are_those_of_the_server",
            (reply.outcome, found) == (OUTCOMES[status], expected),
            lambda: f"{status} and {expected} was sent, {reply} was read",
        )
        return reply.outcome

    def _cover_request(
        self, common: dict[str, int], own: dict[str, int], *, stream: bool, status: int
    ) -> None:
        self._coverage.event(seen.STREAMED if stream else seen.WHOLE, status == 200)
        self._coverage.event(seen.REFUSED, status == 400)
        self._coverage.event(seen.BROKEN, status == 500)
        self._coverage.event(
            seen.OVERRIDDEN, {k for k in common if own.get(k, common[k]) != common[k]}
        )

    # --- E2: one prompt ---

    def _cut(self, *, text: str, most: int) -> object:
        prompt, gone = Truncation(BYTES, most).apply(text), len(text) - most
        self._coverage.event(seen.CUT if gone > 0 else seen.FITS)
        half = most // 2
        expected = text[:half] + text[half + gone :] if gone > 0 else text
        self._coverage.equal(
            "truncation_keeps_head_and_tail", prompt, (expected, gone > 0), f"{most} tokens:"
        )
        return prompt.text

    # --- E3: two configurations ---

    def _compare(self, *, samples: list[dict[str, Any]]) -> object:
        """For each sample: the expected letter, and the answers of each repeat before and after."""
        sides = Sides(self._once(samples, "before"), self._once(samples, "after"), {})
        row, control = (
            make_row(sides, Configuration(name="on", control=control), "cold", "off", Judge())
            for control in (False, True)
        )
        self._flips(row, samples)
        self._chance(row)
        self._chance(control)
        return row.lost, row.won, row.answers

    def _once(self, samples: list[dict[str, Any]], side: str) -> dict[str, SampleRecord]:
        records = [
            _record(number, repeat, sample["expected"], given)
            for number, sample in enumerate(samples)
            for repeat, given in enumerate(sample[side])
        ]
        found = one_each(reversed(records))
        counted = {name: each.given for name, each in found.items()}
        expected = {f"s{number}": _majority(each[side]) for number, each in enumerate(samples)}
        self._coverage.event(seen.REPEATED, any(len({*each[side]}) > 1 for each in samples))
        self._coverage.equal("repeats_count_once", counted, expected, "the repeats count as")
        return found

    def _flips(self, row: Row, samples: list[dict[str, Any]]) -> None:
        expected = set[Flip]()
        for number, sample in enumerate(samples):
            before, after = _majority(sample["before"]), _majority(sample["after"])
            self._coverage.event(seen.INVALID, INVALID in (before, after))
            if before == after:
                continue
            right = sample["expected"]
            kind: Any = {before: "lost", after: "won"}.get(right, "answer")
            expected.add(
                Flip(id=f"s{number}", before=before, after=after, expected=right, kind=kind)
            )
        kinds = [flip.kind for flip in expected]
        self._coverage.event(seen.LOST, row.lost)
        self._coverage.event(seen.WON, row.won)
        counts = kinds.count("lost"), kinds.count("won"), len(kinds)
        self._coverage.check(
            "flips_are_listed_by_sample",
            {*row.flips} == expected and (row.lost, row.won, row.answers) == counts,
            lambda: f"{row.flips} are listed, {expected} are there",
        )

    def _chance(self, row: Row) -> None:
        """A loss is looked for on one side; the control's halves have no order."""
        changed, most = row.lost + row.won, max(row.lost, row.won)
        ways = [sum(way) for way in product((0, 1), repeat=changed)]
        as_bad = [
            max(lost, changed - lost) >= most if row.control else lost >= row.lost for lost in ways
        ]
        exact = sum(as_bad) / len(ways)
        self._coverage.equal(
            "p_values_are_exact", row.p_accuracy, exact, f"{row.lost} lost, {row.won} won:"
        )


def _majority(answers: Sequence[str]) -> str:
    return max(answers, key=answers.count)


def _record(number: int, repeat: int, expected: str, given: str) -> SampleRecord:
    text = "I do not know" if given == INVALID else f"The correct answer is ({given})"
    text = "" if given == FAILED else text
    return SampleRecord(
        configuration="any",
        phase="cold",
        repeat=repeat,
        number=number,
        id=f"s{number}",
        domain="",
        sub_domain="",
        difficulty="easy",
        length="short",
        expected=expected,
        outcome=FAILED if given == FAILED else "answered",
        text=text,
        answer=extract(text),
        finish_reason="stop",
        usage=Usage(),
        seconds=0.0,
        first_token=None,
        started=0.0,
        tries=1,
        faults=(),
        prompt_sha256="",
        cut=False,
    )
