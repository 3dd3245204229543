"""Rounds of prompts whose answers decide: hits and recomputes in random order, prompts in turns.

A fault may answer a hit like the hit before it, so that no prompt is sent twice in a row: the
prompts of a round take turns. Every other turn goes out at once. Which answers of a prompt are hits
is drawn, so that order, load and drift favour neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvproof.harness.served.images import new_image
from kvproof.suites.probe.answers import Answer, NoAnswer
from kvproof.suites.probe.asker import ANSWER, Question, new_salt
from kvproof.suites.probe.compare import Kind
from kvproof.suites.probe.content import HEAD, Turn, fresh, other
from kvproof.suites.probe.server_connection import Sent
from kvproof.suites.probe.trials import RANDOM, TrialContext, TrialInvalid, long_answer, long_turn

HITS, RECOMPUTES = 4, 8
"""Hits and recomputes of a prompt that is repeated."""
_ENDS = 4
"""Prompts with one beginning; each has one hit, for then it is known as a whole."""
_PROMPTS = 6
"""Prompts that take turns."""
_AT_ONCE = 8


class Suspect(NamedTuple):
    """A kind of prompt, and its length."""

    kind: Kind
    words: int


@dataclass
class Asked:
    """One prompt, and its answers so far."""

    question: Question
    turns: list[bool]
    """Whether the next answers are to follow a hit."""
    first: tuple[Answer, ...] = ()
    """The answer that made the prompt known."""
    answers: dict[bool, list[Answer]] = field(default_factory=lambda: {True: [], False: []})
    known: Sequence[Sent] = ()
    """Requests that made the prompt known."""


def one_round(
    context: TrialContext, suspects: Sequence[Suspect], invalid: Callable[[str], None]
) -> list[Asked]:
    """Send prompts of these kinds, and each several times more; `invalid` takes what went wrong.

    A prompt counts only if its turns ended, so that a budget that ends takes the round with it.
    Raises BudgetExhausted, ServerUnreachable.
    """
    asked: list[Asked] = []
    for number in range(_PROMPTS):
        suspect = suspects[number % len(suspects)]
        begun = len(context.asker.line.log)
        try:
            made = _KINDS[suspect.kind](context, suspect.words)
        except (NoAnswer, TrialInvalid) as why:
            invalid(str(why))
            continue
        for each in made:
            each.known = context.asker.line.log[begun:]
        asked += made
    for turn in range(max((len(each.turns) for each in asked), default=0)):
        _one_turn(context, [each for each in asked if turn < len(each.turns)], turn, invalid)
    return asked


def _one_turn(
    context: TrialContext, asked: Sequence[Asked], turn: int, invalid: Callable[[str], None]
) -> None:
    size = _AT_ONCE if turn % 2 and _can_be_at_once(context) else 1
    for first in range(0, len(asked), size):
        try:
            _together(context, asked[first : first + size], turn)
        except (NoAnswer, TrialInvalid) as why:
            invalid(str(why))


def _can_be_at_once(context: TrialContext) -> bool:
    """Return whether the hits among concurrent answers are known."""
    return context.anew and context.reference is None and not context.asker.metered


def _together(context: TrialContext, asked: Sequence[Asked], turn: int) -> None:
    """Send one answer of each prompt; at once, if there are several."""
    if len(asked) == 1:
        send = context.asker.ask if asked[0].turns[turn] else context.plain
        answers = [send(asked[0].question)]
    else:
        sent = [each.question if each.turns[turn] else _anew(each.question) for each in asked]
        answers = context.asker.together(sent)
    for each, answer in zip(asked, answers, strict=True):
        hit = each.turns[turn]
        if context.asker.found(answer) == hit:
            each.answers[hit].append(answer)


def _anew(question: Question) -> Question:
    return question._replace(salt=new_salt(), unshared=None, again=False)


# --- the kinds ---


def _repeated(context: TrialContext, length: int) -> list[Asked]:
    question = Question((Turn(fresh(length)),), context.salt(), unshared=length)
    computed = context.asker.ask(question)
    known = question._replace(unshared=None, again=True)
    return [Asked(known, _drawn(context, HITS, RECOMPUTES), (computed,))]


def _cancelled(context: TrialContext, length: int) -> list[Asked]:
    question = Question((Turn(fresh(length)),), context.salt())
    context.asker.leave(question._replace(most=long_answer(context.asker)), after=1)
    return [Asked(question._replace(again=True), _drawn(context, HITS, RECOMPUTES))]


def _shared(context: TrialContext, length: int) -> list[Asked]:
    base = fresh(max(HEAD, length) + 1)
    first = Question((Turn(base),), context.salt(), unshared=len(base))
    context.asker.ask(first)
    return _ends(context, first, lambda: (Turn(base[:-1] + other(base[-1])),))


def _conversation(context: TrialContext, length: int) -> list[Asked]:
    turn = Turn(fresh(length))
    first = Question((turn,), context.salt(), unshared=length, most=long_turn(context))
    said = turn._replace(answer=context.asker.ask(first))
    return _ends(
        context, first._replace(most=ANSWER), lambda: (said, Turn(fresh(context.sizes.unit)))
    )


def _image(context: TrialContext, length: int) -> list[Asked]:
    opening = Turn(fresh(HEAD))
    first = Question((opening,), context.salt(), form="chat")
    shown = opening._replace(answer=context.asker.ask(first), image=new_image())
    context.asker.ask(first._replace(turns=(shown, Turn(fresh(length)))))
    return _ends(context, first, lambda: (shown, Turn(fresh(length))))


def _ends(
    context: TrialContext, first: Question, turns: Callable[[], tuple[Turn, ...]]
) -> list[Asked]:
    known, share = first._replace(unshared=None), RECOMPUTES // HITS
    return [Asked(known._replace(turns=turns()), _drawn(context, 1, share)) for _ in range(_ENDS)]


def _drawn(context: TrialContext, hits: int, recomputes: int) -> list[bool]:
    turns = [True] * hits + [False] * recomputes * context.anew
    RANDOM.shuffle(turns)
    return turns


_KINDS: dict[Kind, Callable[[TrialContext, int], list[Asked]]] = {
    "repeated": _repeated,
    "shared": _shared,
    "conversation": _conversation,
    "image": _image,
    "cancelled": _cancelled,
}
