"""Checks of answers: against the direct computation, and against the request alone."""

from __future__ import annotations

from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.engine.expected_tokens import sees
from kvproof.suites.reference.engine.properties import (
    ALONE,
    CACHED_ROWS,
    MISSING,
    NEVER_AT_A_BORDER,
    NEVER_WITH_A_SPAN,
)
from kvproof.suites.reference.engine.subject import EXPERTS, Subject
from kvproof.suites.reference.engine.tracked_requests import Prompt, TrackedRequest

UNDISTURBED = (
    "sleep_keeps_or_drops_content_as_it_says",
    "late_or_failed_loads_cost_no_correctness",
    "what_comes_back_is_what_was_computed",
    "moved_requests_are_whole",
    "preempted_equals_undisturbed",
    "drafted_equals_undrafted",
    "chunked_equals_whole",
    "cached_equals_uncached",
)
"""Properties of an answer once its request has met their situations, the rarest first."""


class AnswerChecker:
    """Checks answers as they come, and complete ones again."""

    def __init__(self, subject: Subject, config: Config, coverage: Coverage) -> None:
        self._subject, self._config, self._coverage = subject, config, coverage
        self._layout = subject.build(config).config.cache.layout
        self._groups = self._layout.groups
        self._vocabulary = config["vocabulary"]
        self._alone: dict[tuple[Prompt, int], tuple[int, ...]] = {}

    def arrival(self, prompt: Prompt, refusal: Any) -> None:
        """A request is refused exactly if the empty pool could not hold it at some token."""
        capacity, pool = self._config["num_blocks"] - 1, self._config["state_pool"]
        tokens = _tokens(prompt)
        last = tokens[(len(tokens) - 1) // self._layout.unit * self._layout.unit :]
        each = [most_blocks(self._layout, pool, steps) for steps in (last, tokens)]
        needed = most_blocks(self._layout, pool, [*tokens, *_spans(prompt)])
        fits = needed <= capacity
        self._coverage.event(NEVER_AT_A_BORDER, each[0] <= capacity < each[1])
        self._coverage.event(NEVER_WITH_A_SPAN, each[1] <= capacity < needed)
        self._coverage.check(
            "requests_that_never_fit_are_refused_at_arrival",
            (refusal is None) == fits and (fits or refusal.available == capacity),
            lambda: f"{refusal} for a request that holds up to {needed} of {capacity} blocks",
        )

    def output(self, tracked: TrackedRequest, output: Any, drafts: tuple[int, ...]) -> None:
        """Compare the new tokens and the guesses after them."""
        prompt, answer = tracked.prompt, output.tokens
        wrong = tracked.first_wrong(answer, self._groups, self._vocabulary)
        tracked.answer = answer
        for prop in self._reached(tracked):
            self._coverage.check(
                prop, wrong is None, lambda: f"{_named(output)}: token {wrong} of {answer} is wrong"
            )
        self._coverage.check(
            "answers_have_the_length_asked_for",
            len(answer) <= prompt.new and output.done == (len(answer) == prompt.new),
            lambda: f"{len(answer)} of {prompt.new} tokens, done: {output.done}",
        )
        if drafts and wrong is None:
            known = (*prompt.tokens, *answer)
            oracle = tracked.oracle(self._groups)
            right = oracle.drafts_after(known, len(drafts), self._vocabulary)
            guesses = f"{_named(output)} guesses"
            self._coverage.equal("drafts_are_those_of_whole_draft_layers", drafts, right, guesses)

    def _reached(self, tracked: TrackedRequest) -> list[str]:
        return [prop for prop in UNDISTURBED if prop in tracked.happened] or [UNDISTURBED[-1]]

    def whole(self, tracked: TrackedRequest, experts: Any) -> None:
        """Compare a finished answer with that of the same request alone."""
        tracked.done = True
        if len(tracked.epochs) > 1:
            return  # its weights changed on the way
        if experts is not None:
            self._judge_experts(tracked, experts)
        alone = self._answer_alone(tracked)
        for prop in self._reached(tracked):
            self._coverage.equal(prop, tracked.answer, alone, "the answer is", oracle=ALONE)

    def _judge_experts(self, tracked: TrackedRequest, experts: Any) -> None:
        """Rows of all tokens but the last, as computed; missing ones are named (R2)."""
        rows, missing = experts
        known = [*tracked.prompt.tokens, *tracked.answer][:-1]
        right = tracked.oracle(self._groups).experts(known, EXPERTS)
        gaps = {position for start, stop in missing for position in range(start, stop)}
        most = max(tracked.unrecorded, tracked.shared if tracked.was_reset else 0)
        wrong = [p for p, row in enumerate(rows.tolist()) if p not in gaps and row != right[p]]
        self._coverage.check(
            "expert_rows_equal_a_fresh_run",
            len(rows) == len(known) and not wrong,
            lambda: f"{len(rows)} rows for {len(known)} tokens, wrong ones at {wrong}",
        )
        self._coverage.check(
            "the_engine_reports_missing_expert_rows",
            gaps <= set(range(most))
            and not (gaps and self._config["require_experts"] and not tracked.was_reset),
            lambda: f"rows of {missing} are missing, of {most} that may be",
        )
        self._coverage.event(MISSING, gaps)
        self._coverage.event(CACHED_ROWS, tracked.hit and not gaps)

    def _answer_alone(self, tracked: TrackedRequest) -> tuple[int, ...]:
        key = tracked.prompt, tracked.weights
        if key not in self._alone:
            prompt = tracked.prompt
            engine = self._subject.alone(self._config, tracked.weights)
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


def most_blocks(layout: Any, state_pool: str, steps: list[tuple[int, int]]) -> int:
    """Return the most blocks that a request holds in steps of [start, stop) tokens (P2, B8).

    All blocks of a unit are there or none.
    """
    states = sum(group.state_blocks for group in layout.groups if group.kind == "state")
    attention = [group for group in layout.groups if group.kind != "state"]
    blocks = (
        sum(_blocks(layout.unit, group, start, stop) for group in attention)
        for start, stop in steps
    )
    return max(blocks) + (states if state_pool == "shared" else 0)


def _tokens(prompt: Prompt) -> list[tuple[int, int]]:
    count = len(prompt.tokens) + prompt.new - 1
    return [(position, position + 1) for position in range(count)]


def _spans(prompt: Prompt) -> list[tuple[int, int]]:
    """A span is computed at once (M3)."""
    return [(span.start, span.start + span.length) for span in prompt.spans]


def _blocks(unit: int, group: Any, start: int, stop: int) -> int:
    first = min(there for there in range(start + 1) if there == start or sees(group, start, there))
    units = -(-stop // unit) - first // unit
    blocks: int = units * (unit // group.block_size)
    return blocks


def _named(output: Any) -> str:
    return f"request {output.request_id}"
