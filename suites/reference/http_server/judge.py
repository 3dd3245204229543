"""Compares responses with the expected answers."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server import properties as seen
from kvproof.suites.reference.http_server.logprob_model import chance
from kvproof.suites.reference.http_server.replies import Choice
from kvproof.suites.reference.http_server.tracked_requests import Asked, Order

ANSWER = "every_client_reads_its_own_answer"
REASON = "finish_reason_is_correct"
SCORES = "logprobs_cover_every_token"
USAGE = "usage_counts_computed_tokens"


class Judge:
    """Checks one client at a time; `letters`: token -> its text."""

    def __init__(self, coverage: Coverage, letters: Sequence[str]) -> None:
        self._coverage, self._letters = coverage, letters

    def so_far(self, asked: Asked) -> None:
        """Check the pieces of a stream: nothing in them is revised later."""
        for index, choice in asked.told.choices.items():
            known = index in range(len(asked.orders))
            text = self._text(asked, asked.orders[index]) if known else ""
            self._coverage.check(
                ANSWER,
                known
                and text.startswith(choice.text)
                and choice.begun <= asked.chat + asked.how.token_ids,
                lambda index=index, choice=choice, text=text: (  # type: ignore[misc]  # a closure
                    f"choice {index} receives {choice.text!r}, its answer is {text!r}"
                ),
            )

    def _text(self, asked: Asked, order: Order) -> str:
        echo = "".join(self._letters[token] for token in order.prompt) if asked.how.echo else ""
        return echo + order.wanted.text

    def whole(self, asked: Asked) -> None:
        told, orders = asked.told, asked.orders
        ended = sorted(told.choices) == [*range(len(orders))] and told.done == asked.how.stream
        self._coverage.check(
            ANSWER,
            ended and len(told.ids) == 1,
            lambda: f"{len(orders)} prompts got the choices {[*told.choices]} of {told.ids}",
        )
        for index, order in enumerate(orders):
            self._choice(asked, order, told.choices[index], index)
        self._usage(asked)
        self._cover(asked)

    def _choice(self, asked: Asked, order: Order, choice: Choice, index: int) -> None:
        text, tokens = self._text(asked, order), asked.how.token_ids
        right = choice.text == text and choice.begun == asked.chat + tokens
        if tokens:
            right &= choice.tokens == [*order.wanted.tokens]
            right &= choice.prompt == [*order.prompt]
        self._coverage.check(
            ANSWER, right, lambda: f"choice {index} is {choice}, expected {order.wanted}"
        )
        self._coverage.check(
            REASON,
            choice.finish == order.wanted.finish,
            lambda: f"choice {index} ended with {choice.finish!r}, not {order.wanted.finish!r}",
        )
        if asked.how.logprobs is not None:
            due = self._scores(asked, order)
            self._coverage.check(
                SCORES,
                choice.scores == due,
                lambda: f"choice {index} has the scores {choice.scores}, expected {due}",
            )

    def _scores(self, asked: Asked, order: Order) -> list[tuple[float, int] | None]:
        every = (*order.prompt, *order.wanted.tokens)
        first = 0 if asked.how.echo else len(order.prompt)
        alternatives = asked.how.logprobs or 0
        return [
            (chance(every[:at], every[at]), alternatives) if at else None
            for at in range(first, len(every))
        ]

    def _usage(self, asked: Asked) -> None:
        if asked.how.stream and not asked.how.usage:
            due = []
        else:
            prompt = sum(len(order.prompt) for order in asked.orders)
            answer = sum(len(order.wanted.tokens) for order in asked.orders)
            cached = sum(order.hit or 0 for order in asked.orders)
            due = [
                {
                    "prompt_tokens": prompt,
                    "completion_tokens": answer,
                    "total_tokens": prompt + answer,
                    "prompt_tokens_details": {"cached_tokens": cached},
                }
            ]
        self._coverage.check(
            USAGE,
            asked.told.usages == due,
            lambda: f"the usage is {asked.told.usages}, expected {due}",
        )

    def _cover(self, asked: Asked) -> None:
        saw, orders = self._coverage.event, asked.orders
        saw(seen.STREAMED if asked.how.stream else seen.WHOLE)
        saw(seen.SEVERAL, len(orders) > 1)
        saw(seen.CHAT, any(order.spans for order in orders))
        saw(seen.HITS, sum(bool(order.hit) for order in orders) > 1)
        saw(seen.USAGE, asked.how.stream and asked.how.usage)
        saw(seen.SCORED, asked.how.logprobs is not None)
        for order in orders:
            tokens, _, finish = order.wanted
            saw(seen.ENDED if tokens[-1] == 0 else seen.STOPPED, finish == "stop")
            saw(seen.LAST, finish == "stop" and tokens[-1] == 0 and len(tokens) == order.most)
            saw(seen.LENGTH, finish == "length")
            saw(seen.IGNORED, 0 in tokens and finish != "stop")
            held = max((len(stop) for stop in asked.how.stops), default=0) > 1
            saw(seen.ACROSS, finish == "stop" and held and asked.how.stream and tokens[-1])
