"""Trials: a few requests that show whether reuse changes an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import TypeAlias

from kvproof.harness.served.images import new_image
from kvproof.suites.probe.answers import Answer, NoAnswer
from kvproof.suites.probe.asker import ANSWER, CHANCE, LONG, Asker, Question, new_salt
from kvproof.suites.probe.compare import Pair
from kvproof.suites.probe.content import HEAD, Turn, Words, fresh, other
from kvproof.suites.probe.server_connection import ServerUnreachable
from kvproof.suites.probe.sizes import Sizes

TOGETHER = 8
"""Concurrent requests."""
RANDOM: Random = SystemRandom()
"""Draws the order of requests."""


class TrialInvalid(Exception):
    """A trial shows nothing; the message gives the reason."""


@dataclass
class Trial:
    """Result of one trial."""

    pairs: list[Pair] = field(default_factory=list)
    situations: Counter[str] = field(default_factory=Counter)
    wrong: str = ""
    """A count that noise cannot explain."""
    made: int = 0
    """Comparisons besides those of the pairs."""

    def saw(self, situation: str, *, happened: bool) -> None:
        """Count a situation, also if it has not happened."""
        self.situations[situation] += happened


@dataclass(frozen=True)
class TrialContext:
    """Connections and facts of the trials."""

    asker: Asker
    sizes: Sizes
    salts: bool = False
    """Salts are documented, and separate prompts."""
    neutral: bool = False
    """Salts do not change answers, so a new one computes a prompt without the cache."""
    reference: Asker | None = None
    """Another server of the same model, without prefix caching."""

    @property
    def anew(self) -> bool:
        """Return whether prompts can be computed without the cache."""
        return self.reference is not None or (self.salts and self.neutral)

    def salt(self) -> str:
        """Return a new namespace, or the common one."""
        return new_salt() if self.salts else ""

    def plain(self, question: Question) -> Answer:
        """Compute a prompt without the cache. Raises TrialInvalid after a hit."""
        if self.reference is not None:
            answer, where = _by(self.reference, question), f"by {_REFERENCE}"
        else:
            usual = question.form in (None, self.asker.facts.form)  # elsewhere salts were not seen
            new = question.words if usual else None
            asked = question._replace(salt=new_salt(), unshared=new, again=False)
            answer, where = self.asker.ask(asked), "under a salt of its own"
        if _known(answer, question.words):
            raise TrialInvalid(f"the prompt was expected to be computed, and was found {where}")
        return answer


_LONGEST = 160
"""Tokens of the longest answer before a turn: two blocks of 64, and some more."""

_TIMES, _LEAD = 8, 0.005
"""Length of a prompt that others wait for, in their lengths, and seconds that it comes first."""

_REFERENCE = "the server of --against"


def _by(reference: Asker, question: Question) -> Answer:
    """Use another server, whose errors are not the tested server's. Raises TrialInvalid."""
    try:
        return reference.ask(question._replace(again=False))
    except (NoAnswer, ServerUnreachable) as why:
        raise TrialInvalid(f"{_REFERENCE} does not answer: {why}") from None


def _known(answer: Answer, words: int) -> bool:
    """Return whether the hit is longer than the chat template alone."""
    return bool(answer.prompt) and (answer.cached or 0) > answer.prompt - words + CHANCE


Run: TypeAlias = Callable[[TrialContext, int], Trial]
"""Runs the trial of one case."""

FOUND, INSIDE = "prompt found again", "hit ended inside a prompt"


def again(context: TrialContext, length: int) -> Trial:
    """Send two prompts in turns, each three times: a fault may repeat the answer of the hit before.

    The second one is a block longer.
    """
    trial, asker = Trial(), context.asker
    lengths = (length, length + context.sizes.unit)
    firsts = [_new_question(context, each) for each in lengths]
    computed = [asker.ask(each) for each in firsts]
    found = _in_any_order(context, [each._replace(unshared=None, again=True) for each in firsts])
    for words, plain, (hits, anew) in zip(lengths, computed, found, strict=True):
        for number, answer in enumerate(hits, 2):
            trial.saw(FOUND, happened=asker.found(answer))
            label = f"time {number}, {words} words"
            trial.pairs.append(Pair(label, plain, answer, anew=anew))
    return trial


def _new_question(context: TrialContext, length: int) -> Question:
    return Question((Turn(fresh(length)),), context.salt(), unshared=length)


def _in_any_order(
    context: TrialContext, questions: Sequence[Question]
) -> list[tuple[list[Answer], tuple[Answer, ...]]]:
    """Send each prompt twice, and once computed anew where the server itself can; in turns."""
    anew = context.anew and context.reference is None
    orders = [[True, True, *[False] * anew] for _ in questions]
    for order in orders:
        RANDOM.shuffle(order)
    found: list[dict[bool, list[Answer]]] = [{True: [], False: []} for _ in questions]
    for turn in zip(*orders, strict=True):
        for hit, question, answers in zip(turn, questions, found, strict=True):
            ask = context.asker.ask if hit else context.plain
            answers[hit].append(ask(question))
    return [(answers[True], tuple(answers[False])) for answers in found]


def partly(context: TrialContext, length: int) -> Trial:
    """Send a prompt that shares its first `length` words with an earlier one."""
    trial, asker, salt = Trial(), context.asker, context.salt()
    base = fresh(length + context.sizes.unit + 1)
    asker.ask(Question((Turn(base),), salt, unshared=len(base)))
    question = Question((Turn(base[:length] + other(base[length])),), salt, unshared=4)
    order = [True, False, False]
    RANDOM.shuffle(order)
    answers = [(hit, (asker.ask if hit else context.plain)(question)) for hit in order]
    (reused,) = (answer for hit, answer in answers if hit)
    anew = tuple(answer for hit, answer in answers if not hit)
    trial.saw(INSIDE, happened=asker.found(reused))
    trial.pairs.append(Pair(f"{length} shared words", anew[0], reused, "shared", anew))
    return trial


def salted(context: TrialContext, length: int) -> Trial:
    """Send one prompt under one salt, another and none, and under the first one again."""
    trial, asker = Trial(), context.asker
    question = Question((Turn(fresh(length)),), new_salt(), unshared=length)
    asker.ask(question)
    for salt, words in ((new_salt(), "another salt"), ("", "no salt")):
        answer = asker.ask(question._replace(salt=salt))
        if _known(answer, length):
            trial.wrong = (
                f"a prompt sent under one cache_salt was found under {words}: "
                f"{answer.cached} of {answer.prompt} tokens"
            )
            return trial
    back = asker.ask(question._replace(unshared=None, again=True))
    trial.saw("found under its own salt", happened=asker.found(back))
    trial.made += 1
    return trial


def under_salts(context: TrialContext, length: int) -> Trial:
    """Send one prompt under two salts, to see whether a salt changes an answer."""
    question = Question((Turn(fresh(length)),), new_salt(), unshared=length)
    first = context.asker.ask(question)
    second = context.asker.ask(question._replace(salt=new_salt()))
    return Trial([Pair("under two salts", first, second)])


def conversation(context: TrialContext, length: int) -> Trial:
    """Send three turns, each with the answers before it."""
    trial, asker, salt = Trial(), context.asker, context.salt()
    turns: tuple[Turn, ...] = ()
    known = 0
    for number, words in enumerate((length, 1, context.sizes.unit)):
        turns = (*turns, Turn(fresh(words)))
        long = number == 1
        question = Question(turns, salt, _new(turns, asker), unending=long,
                            most=_whole_block(context) if long else ANSWER)  # fmt: skip
        answer = asker.ask(question)
        if number:
            plain = context.plain(question)
            trial.pairs.append(Pair(f"turn {number + 1}", plain, answer, "conversation"))
            trial.saw("earlier turn found", happened=asker.found(answer))
            trial.saw("generated tokens found", happened=(answer.cached or 0) > known)
        known = answer.prompt
        turns = (*turns[:-1], turns[-1]._replace(answer=answer))
    return trial


def _new(turns: Sequence[Turn], asker: Asker) -> int | None:
    """Return the words without an earlier request for the same turns.

    Without ids, words take the place of the last answer, and may be equal to it.
    """
    said = turns[-2].answer if len(turns) > 1 else None
    unlike = said is None or asker.facts.form != "ids" or said.ids
    return len(turns[-1].words) if unlike else None


def _whole_block(context: TrialContext) -> int:
    """Return the tokens of an answer with a whole block, wherever its prompt ends."""
    return min(_LONGEST, 2 * context.sizes.unit)


def long_turn(context: TrialContext) -> int:
    """Return the tokens of an answer that fills a block of its own, if blocks are small."""
    return min(40, context.sizes.unit + 8)


def cancelled(context: TrialContext, length: int) -> Trial:
    """Cancel two running requests, then send the same prompt and a longer one."""
    trial, asker, salt = Trial(), context.asker, context.salt()
    words = fresh(length)
    question = Question((Turn(words),), salt)
    plain = context.plain(question) if context.anew else asker.ask(question)
    for after in (1, 3):
        left = asker.leave(question._replace(most=long_answer(asker)), after=after)
        trial.saw("request cancelled while running", happened=left)
    reused = asker.ask(question._replace(again=True))
    trial.saw("found after a cancelled request", happened=asker.found(reused))
    trial.pairs.append(Pair("after it was cancelled", plain, reused, "cancelled"))
    if context.anew:
        more = fresh(context.sizes.unit)
        longer = Question((Turn(words + more),), salt)  # answers may go on like that
        answer = asker.ask(longer)
        label = "going on from a cancelled one"
        trial.pairs.append(Pair(label, context.plain(longer), answer, "cancelled"))
    return trial


def long_answer(asker: Asker) -> int:
    """Return the tokens of an answer whose request is cancelled."""
    longest = asker.facts.longest
    return min(LONG, longest // 4) if longest else LONG


def duplicates(context: TrialContext, length: int) -> Trial:
    """Send one prompt several times concurrently.

    A long one goes first, so that the others wait for it and begin in one step.
    """
    trial, asker = Trial(), context.asker
    question = Question((Turn(fresh(length)),), context.salt())
    long = min(_TIMES * length, asker.facts.longest // 4 or _TIMES * length)
    first = Question((Turn(fresh(max(length, long))),), context.salt())
    _, *answers = asker.together([first, *[question] * TOGETHER], lead=_LEAD)
    trial.saw("equal prompts at once", happened=True)
    last = asker.ask(question._replace(again=True))
    trial.saw(FOUND, happened=asker.found(last))
    plain = context.plain(question) if context.anew else answers.pop(0)
    trial.pairs.append(Pair(f"{length} words, after {TOGETHER} at once", plain, last))
    trial.pairs += [
        Pair(f"{length} words, number {place} of {len(answers)} at once", plain, each)
        for place, each in enumerate(answers, 1)
    ]
    return trial


def neighbours(context: TrialContext, length: int) -> Trial:
    """Send prompts with a common prefix concurrently, and one by one."""
    trial, asker, salt = Trial(), context.asker, context.salt()
    questions = [Question((turn,), salt) for turn in _with_common_head(length)]
    if context.anew:
        asker.ask(questions[0])
        reused = asker.together(questions)
        plain = [context.plain(each) for each in questions]
    else:
        plain = [asker.ask(each) for each in questions]
        reused = asker.together(questions)
    trial.saw("found while others run", happened=asker.found_at_once)
    for one, two in zip(plain, reused, strict=True):
        label = f"{length} common words, {TOGETHER} at once"
        trial.pairs.append(Pair(label, one, two, "shared"))
    return trial


def _with_common_head(length: int) -> list[Turn]:
    head: Words = fresh(length)
    return [Turn((*head, number, *fresh(1 + number * length // 4))) for number in range(TOGETHER)]


def images(context: TrialContext, length: int) -> Trial:
    """Ask about one image, then about another in its place, then about the first again.

    The image stands in an earlier turn, and the words follow it in the last one. So any template
    writes few tokens before the image, and whole blocks of any size after it.
    """
    trial, asker, salt = Trial(), context.asker, context.salt()
    opening, words = Turn(fresh(HEAD)), Turn(fresh(length))
    said = asker.ask(Question((opening,), salt, form="chat"))
    bound = said.prompt
    """Most tokens before the image: those of its turn without it."""

    def about(picture: bytes) -> Question:
        return Question((opening._replace(answer=said, image=picture), words), salt, form="chat")

    first, second = about(new_image()), about(new_image())._replace(bound=bound)
    one, two = asker.ask(first), asker.ask(second)
    back = asker.ask(first._replace(again=True))
    trial.saw("image found again", happened=(back.cached or 0) > bound)
    if (two.cached or 0) > bound:
        trial.wrong = (
            f"{two.cached} of {two.prompt} tokens were found of a chat with a new image, "
            f"at most {bound} come before it"
        )
    trial.pairs.append(Pair("the same image again", one, back, "image"))
    if context.anew:
        plain = context.plain(second._replace(bound=None))
        trial.pairs.append(Pair("another image in its place", plain, two, "image"))
    return trial


def controls(context: TrialContext, length: int) -> Trial:
    """Compute one prompt twice."""
    question = Question((Turn(fresh(length)),), context.salt(), unshared=length)
    one = context.asker.ask(question)
    two = context.plain(question) if context.anew else context.asker.ask(question)
    if not context.anew and context.asker.found(two):
        raise TrialInvalid(f"even {length} words were found")
    trial = Trial([Pair("computed twice", one, two)])
    trial.saw("prompt computed twice", happened=True)
    return trial


def controls_at_once(context: TrialContext, length: int) -> Trial:
    """Compute one prompt alone, and again together with others that are computed."""
    questions = [_new_question(context, length) for _ in range(TOGETHER)]
    one = context.asker.ask(questions[0])
    if context.salts:
        questions[0] = questions[0]._replace(salt=new_salt())
    two, *_ = context.asker.together(questions)
    if context.asker.found_at_once:
        raise TrialInvalid("prompts that were to be computed at once were found")
    return Trial([Pair("computed alone and at once", one, two)])
