"""Trials that take many requests, or time: in a crowd, next to a long prompt, after a pause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.asker import LONG, Question, new_salt
from kvproof.suites.probe.compare import Pair
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.trials import Trial, TrialContext, TrialInvalid

PAUSES = (6, 21)
"""Seconds: more than an idle server waits, and than an entry stays young."""
PROMPTS, COPIES = 16, 5
"""Known prompts of a crowd, and requests for each at once."""
REQUESTS = 5 * (PROMPTS * (COPIES + 1) + 12)
"""A crowd's, with those of four more that decide about a changed answer."""
_ANSWER = 32
"""Tokens of an answer in a crowd, so that all run together."""
_FEW = 4
"""Known prompts next to a long one."""
_TIMES = 8
"""Length of a long prompt, in those of the short ones."""
_LEAD = 0.005
"""Seconds that the long prompt comes first."""
CROWD, BESIDE_LONG = "found in a crowd", "found next to a long prompt"


class _Known(NamedTuple):
    """A prompt that comes again, and its computed answer."""

    question: Question
    answer: Answer


def after(seconds: int) -> str:
    """Name the situation that a hit follows a pause."""
    return f"found after {seconds} s"


def required(length: int, longest: int) -> tuple[str, ...]:
    """Return the situations of a crowd where a prompt has at most `longest` tokens (0: any).

    A word is two tokens at most.
    """
    fits = not longest or 2 * _long(length) + LONG <= longest
    return (CROWD, BESIDE_LONG) if fits else (CROWD,)


def _long(length: int) -> int:
    return _TIMES * length + HEAD


def in_company(context: TrialContext, length: int) -> Trial:
    """Send prompts that are known, many at once; then some next to a much longer new one."""
    trial, asker = Trial(), context.asker
    known = _known(context, length, PROMPTS)
    answers = asker.together([each.question for each in known] * COPIES)
    trial.saw(CROWD, happened=asker.found_at_once)
    for copy in reversed(range(COPIES)):  # the last ones have most company
        label = f"{length} words, {len(answers)} at once, round {copy + 1}"
        mine = answers[copy * len(known) :]
        trial.pairs += [Pair(label, a.answer, b) for a, b in zip(known, mine, strict=False)]
    if BESIDE_LONG in required(length, asker.facts.longest):
        _beside_long(context, known[:_FEW], trial)
    return trial


def controls_in_crowd(context: TrialContext, length: int) -> Trial:
    """Compute prompts alone, and again in a crowd in which everything is computed."""
    known = _known(context, length, PROMPTS)
    anew = [each.question for each in known]
    if context.salts:
        anew = [each._replace(salt=new_salt()) for each in anew]
    others = _new(context, length, PROMPTS * (COPIES - 1))
    answers = context.asker.together([*others, *anew])[len(others) :]
    if context.asker.found_at_once:
        raise TrialInvalid("prompts that were to be computed in a crowd were found")
    pairs = zip(known, answers, strict=True)
    return Trial([Pair("computed alone and in a crowd", one.answer, two) for one, two in pairs])


def _known(context: TrialContext, length: int, count: int) -> list[_Known]:
    """Compute new prompts, one after the other."""
    new = _new(context, length, count)
    return [_Known(each._replace(unshared=None), context.asker.ask(each)) for each in new]


def _new(context: TrialContext, length: int, count: int) -> list[Question]:
    return [
        Question((Turn(fresh(length)),), context.salt(), length, most=_ANSWER, unending=True)
        for _ in range(count)
    ]


def _beside_long(context: TrialContext, known: Sequence[_Known], trial: Trial) -> None:
    asker, length = context.asker, _long(known[0].question.words)
    long = Question((Turn(fresh(length)),), context.salt(), length, most=LONG, unending=True)
    _, *answers = asker.together([long, *(each.question for each in known)], lead=_LEAD)
    trial.saw(BESIDE_LONG, happened=asker.found_at_once)
    label = f"{known[0].question.words} words beside {length}"
    trial.pairs += [Pair(label, a.answer, b) for a, b in zip(known, answers, strict=True)]


def paused(context: TrialContext, seconds: int) -> Trial:
    """Send new prompts, and each again after a pause."""
    trial, asker = Trial(), context.asker
    known = _known(context, 2 * (HEAD + context.sizes.unit), PROMPTS // 2)
    asker.pause(seconds)
    hits = [asker.ask(each.question) for each in known]
    trial.saw(after(seconds), happened=asker.found(hits[0]))
    pairs = zip(known, hits, strict=True)
    first, *rest = (Pair(f"after {seconds} s", one.answer, hit) for one, hit in pairs)
    trial.pairs += [*rest, first._replace(label=f"the first after {seconds} s")]
    return trial
