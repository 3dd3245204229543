"""Compares responses with the expected answers."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server import properties as seen
from kvproof.suites.reference.http_server.logprob_model import chance
from kvproof.suites.reference.http_server.replies import Choice
from kvproof.suites.reference.http_server.tracked_requests import Order, TrackedRequest

ANSWER = "every_client_reads_its_own_answer"
REASON = "finish_reason_is_correct"
SCORES = "logprobs_cover_every_token"
USAGE = "usage_counts_computed_tokens"


class ResponseChecker:
    """Checks one client at a time; `letters`: token -> its text."""

    def __init__(self, coverage: Coverage, letters: Sequence[str]) -> None:
        self._coverage, self._letters = coverage, letters

    def so_far(self, tracked: TrackedRequest) -> None:
        """Check the pieces of a stream: nothing in them is revised later."""
        for index, choice in tracked.reply.choices.items():
            known = index in range(len(tracked.orders))
            text = self._text(tracked, tracked.orders[index]) if known else ""
            self._coverage.check(
                ANSWER,
                known
                and text.startswith(choice.text)
                and choice.begun <= tracked.chat + tracked.how.token_ids,
                lambda index=index, choice=choice, text=text: (  # type: ignore[misc]  # a closure
                    f"choice {index} receives {choice.text!r}, its answer is {text!r}"
                ),
            )

    def _text(self, tracked: TrackedRequest, order: Order) -> str:
        echo = "".join(self._letters[token] for token in order.prompt) if tracked.how.echo else ""
        return echo + order.wanted.text

    def whole(self, tracked: TrackedRequest) -> None:
        reply, orders = tracked.reply, tracked.orders
        ended = sorted(reply.choices) == [*range(len(orders))] and reply.done == tracked.how.stream
        self._coverage.check(
            ANSWER,
            ended and len(reply.ids) == 1,
            lambda: f"{len(orders)} prompts got the choices {[*reply.choices]} of {reply.ids}",
        )
        for index, order in enumerate(orders):
            self._choice(tracked, order, reply.choices[index], index)
        self._usage(tracked)
        self._cover(tracked)

    def _choice(self, tracked: TrackedRequest, order: Order, choice: Choice, index: int) -> None:
        text, tokens = self._text(tracked, order), tracked.how.token_ids
        right = choice.text == text and choice.begun == tracked.chat + tokens
        if tokens:
            right &= choice.tokens == [*order.wanted.tokens]
            right &= choice.prompt == [*order.prompt]
        self._coverage.check(
            ANSWER, right, lambda: f"choice {index} is {choice}, expected {order.wanted}"
        )
        self._coverage.equal(
            REASON, choice.finish, order.wanted.finish, f"choice {index} ends with"
        )
        if tracked.how.logprobs is not None:
            due = self._scores(tracked, order)
            self._coverage.equal(SCORES, choice.scores, due, f"choice {index} has the scores")

    def _scores(self, tracked: TrackedRequest, order: Order) -> list[tuple[float, int] | None]:
        every = (*order.prompt, *order.wanted.tokens)
        first = 0 if tracked.how.echo else len(order.prompt)
        alternatives = tracked.how.logprobs or 0
        return [
            (chance(every[:at], every[at]), alternatives) if at else None
            for at in range(first, len(every))
        ]

    def _usage(self, tracked: TrackedRequest) -> None:
        if tracked.how.stream and not tracked.how.usage:
            due = []
        else:
            once = tracked.orders[:: tracked.how.n]  # a prompt counts once for all its answers
            prompt = sum(len(order.prompt) for order in once)
            answer = sum(len(order.wanted.tokens) for order in tracked.orders)
            cached = sum(order.hit or 0 for order in once)
            due = [
                {
                    "prompt_tokens": prompt,
                    "completion_tokens": answer,
                    "total_tokens": prompt + answer,
                    "prompt_tokens_details": {"cached_tokens": cached},
                }
            ]
        self._coverage.equal(USAGE, tracked.reply.usages, due, "the usage is")

    def _cover(self, tracked: TrackedRequest) -> None:
        saw, orders = self._coverage.event, tracked.orders
        saw(seen.STREAMED if tracked.how.stream else seen.WHOLE)
        saw(seen.SEVERAL, len(orders) > tracked.how.n)
        saw(seen.ANSWERS, tracked.how.n > 1)
        saw(seen.ANSWERS_HIT, tracked.how.n > 1 and orders[0].hit)
        for order in orders:
            whole = "".join(self._letters[token] for token in order.wanted.tokens if token)
            matching = [stop for stop in tracked.how.stops if stop in whole]
            saw(seen.TWO_STOPS, len({*matching}) > 1)
        saw(seen.CHAT, any(order.spans for order in orders))
        saw(seen.HITS, sum(bool(order.hit) for order in orders) > 1)
        saw(seen.USAGE, tracked.how.stream and tracked.how.usage)
        saw(seen.SCORED, tracked.how.logprobs is not None)
        for order in orders:
            tokens, _, finish = order.wanted
            saw(seen.ENDED if tokens[-1] == 0 else seen.STOPPED, finish == "stop")
            saw(seen.LAST, finish == "stop" and tokens[-1] == 0 and len(tokens) == order.most)
            saw(seen.LENGTH, finish == "length")
            saw(seen.IGNORED, 0 in tokens and finish != "stop")
            held = max((len(stop) for stop in tracked.how.stops), default=0) > 1
            saw(seen.ACROSS, finish == "stop" and held and tracked.how.stream and tokens[-1])
