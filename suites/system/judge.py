"""Is the answer right? Against the direct computation, and against the request alone."""

from __future__ import annotations

from typing import Any

from kvproof.suites.part import Config, Recorder
from kvproof.suites.system.asked import Asked, Prompt
from kvproof.suites.system.properties import ALONE, CACHED_ROWS, MISSING
from kvproof.suites.system.subject import EXPERTS, Subject

UNDISTURBED = (
    "cached_equals_uncached",
    "chunked_equals_whole",
    "preempted_equals_undisturbed",
    "drafted_equals_undrafted",
    "moved_requests_are_whole",
)
"""Properties of an answer, as far as they have happened to its request."""


class Judge:
    """Judges answers as they come, and whole ones again."""

    def __init__(self, subject: Subject, config: Config, recorder: Recorder) -> None:
        self._subject, self._config, self._recorder = subject, config, recorder
        self._groups = subject.build(config).config.cache.layout.groups
        self._vocabulary = config["vocabulary"]
        self._alone: dict[tuple[Prompt, int], tuple[int, ...]] = {}

    def arrival(self, refusal: Any) -> None:
        """Whoever is refused at arrival could not be served by the empty pool."""
        if refusal is not None:
            self._recorder.check(
                "requests_that_never_fit_are_refused_at_arrival",
                refusal.reason == "never_fits" and refusal.needed > refusal.available,
                lambda: f"refused at arrival with {refusal}",
            )

    def output(self, asked: Asked, output: Any, drafts: tuple[int, ...]) -> None:
        """Compare the new tokens and the guesses after them."""
        prompt, answer = asked.prompt, output.tokens
        wrong = asked.first_wrong(answer, self._groups, self._vocabulary)
        asked.answer = answer
        for prop in self._reached(asked):
            self._recorder.check(
                prop, wrong is None, lambda: f"{_named(output)}: token {wrong} of {answer} is wrong"
            )
        self._recorder.check(
            "answers_have_the_length_asked_for",
            len(answer) <= prompt.new and output.done == (len(answer) == prompt.new),
            lambda: f"{len(answer)} of {prompt.new} tokens, done: {output.done}",
        )
        if drafts and wrong is None:
            known = (*prompt.tokens, *answer)
            oracle = asked.oracle(self._groups)
            right = oracle.drafts_after(known, len(drafts), self._vocabulary)
            self._recorder.check(
                "drafts_are_those_of_whole_draft_layers",
                drafts == right,
                lambda: f"{_named(output)}: guesses {drafts}, the draft layers say {right}",
            )

    def _reached(self, asked: Asked) -> list[str]:
        return [prop for prop in UNDISTURBED if prop in asked.happened] or [UNDISTURBED[0]]

    def whole(self, asked: Asked, experts: Any) -> None:
        """Compare a finished answer with that of the same request alone."""
        asked.done = True
        if len(asked.epochs) > 1:
            return  # its weights changed on the way
        if experts is not None:
            self._judge_experts(asked, experts)
        alone = self._answer_alone(asked)
        for prop in self._reached(asked):
            self._recorder.check(
                prop,
                alone == asked.answer,
                lambda: f"the answer is {asked.answer}, alone it is {alone}",
                oracle=ALONE,
            )
        self._recorder.check("requests_that_never_fit_are_refused_at_arrival", True, str)  # noqa: FBT003 - answered

    def _judge_experts(self, asked: Asked, experts: Any) -> None:
        """Rows of all tokens but the last, as computed; what is missing is named (R2)."""
        rows, missing = experts
        known = [*asked.prompt.tokens, *asked.answer][:-1]
        right = asked.oracle(self._groups).experts(known, EXPERTS)
        gaps = {position for start, stop in missing for position in range(start, stop)}
        wrong = [p for p, row in enumerate(rows.tolist()) if p not in gaps and row != right[p]]
        self._recorder.check(
            "expert_rows_equal_a_fresh_run",
            len(rows) == len(known) and not wrong,
            lambda: f"{len(rows)} rows for {len(known)} tokens, wrong ones at {wrong}",
        )
        self._recorder.check(
            "missing_expert_rows_are_reported",
            gaps <= set(range(asked.hit))
            and not (gaps and self._config["require_experts"] and not asked.was_reset),
            lambda: f"rows of {missing} are missing after a hit of {asked.hit} tokens",
        )
        self._recorder.saw(MISSING, gaps)
        self._recorder.saw(CACHED_ROWS, asked.hit and not gaps)

    def _answer_alone(self, asked: Asked) -> tuple[int, ...]:
        key = asked.prompt, asked.weights
        if key not in self._alone:
            prompt = asked.prompt
            engine = self._subject.alone(self._config, asked.weights)
            engine.add_request(
                "alone",
                prompt.tokens,
                max_new_tokens=prompt.new,
                namespace=prompt.namespace,
                spans=prompt.spans,
            )
            outputs = [output for _ in range(prompt.new) for output in engine.step()]
            self._alone[key] = outputs[-1].tokens if outputs else ()
        return self._alone[key]


def _named(output: Any) -> str:
    return f"request {output.request_id}"
