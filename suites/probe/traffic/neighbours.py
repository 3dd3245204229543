"""Trials of a request alone and together with another one, in an order that is drawn."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.harness.isolation.threads import interruptible
from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.asker import CHANCE, Question, new_salt
from kvproof.suites.probe.compare import Pair
from kvproof.suites.probe.content import Turn, fresh
from kvproof.suites.probe.trials import RANDOM, Trial, TrialContext

LEFT, TAKEN = "neighbour cancelled while running", "its room taken while the request ran"
NAMED = "another name while the request ran"

_ANSWER = 256
"""Tokens of an answer that runs while others come and go."""
_OTHERS = 4
"""New requests after a neighbour has left."""
_TAIL = 4
"""Words by which two prompts differ."""


def leaving(context: TrialContext, length: int) -> Trial:
    """Cancel a neighbour with the same beginning while a request runs; new ones take its room."""
    trial, asker, salt = Trial(), context.asker, context.salt()
    head = fresh(length)
    asker.ask(Question((Turn(head),), salt))
    question = _long(context, Question((Turn(head + fresh(_TAIL)),), salt))
    neighbour = question._replace(turns=(Turn(head + fresh(_TAIL)),))

    def beside() -> Answer:
        with interruptible(1, context.asker.line.close) as pool:
            running = pool.submit(asker.ask, question)
            trial.saw(LEFT, happened=asker.leave(neighbour))
            asker.together([_new(context, length) for _ in range(_OTHERS)])
            trial.saw(TAKEN, happened=not running.done())
            return running.result()

    alone, other = _in_any_order(context, question, beside)
    trial.pairs.append(Pair("beside a neighbour that left", alone, other, "cancelled"))
    return trial


def namesakes(context: TrialContext, length: int) -> Trial:
    """Send the same new tokens under another salt, and to each adapter, while a request runs."""
    trial, asker = Trial(), context.asker
    words = Turn(fresh(length))
    question = _long(context, Question((words,), context.salt(), unshared=length))
    names = [question._replace(salt=new_salt())] if context.salts else []
    names += [question._replace(model=name) for name in asker.facts.adapters]
    found: list[tuple[Question, Answer]] = []

    def beside() -> Answer:
        with interruptible(1, context.asker.line.close) as pool:
            running = pool.submit(asker.ask, question)
            for each in names:
                found.append((each, asker.ask(each)))
                trial.saw(NAMED, happened=not running.done())
            return running.result()

    alone, other = _in_any_order(context, question, beside)
    trial.pairs.append(Pair("beside another name", alone, other))
    for each, answer in found:
        under = f"adapter {each.model}" if each.model else "another salt"
        if (answer.cached or 0) > max(asker.floor, CHANCE):
            trial.wrong = (
                f"a prompt that is running was found under {under}: {answer.cached} of "
                f"{answer.prompt} tokens"
            )
        if context.anew:
            trial.pairs.append(Pair(f"under {under}", context.plain(each), answer))
    return trial


def _long(context: TrialContext, question: Question) -> Question:
    longest = context.asker.facts.longest
    return question._replace(most=min(_ANSWER, longest // 4 or _ANSWER), unending=True)


def _new(context: TrialContext, length: int) -> Question:
    return Question((Turn(fresh(length)),), context.salt(), unshared=length)


def _in_any_order(
    context: TrialContext, question: Question, beside: Callable[[], Answer]
) -> tuple[Answer, Answer]:
    """Return the answer alone and among others; alone first where nothing is computed anew."""
    if not context.anew:
        return context.asker.ask(question), beside()
    if RANDOM.random() < 1 / 2:
        return context.plain(question), beside()
    other = beside()
    return context.plain(question), other
