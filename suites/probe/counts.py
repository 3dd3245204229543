"""Checks the cached counts of all answers, of every check, against the documented rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kvproof.suites.framework.property import Property
from kvproof.suites.probe.asker import Asker, Seen
from kvproof.suites.probe.check import BLOCKS, FOUND, LAST, MONOTONE, POSSIBLE, WITHIN, Verdict
from kvproof.suites.probe.server_connection import Sent
from kvproof.suites.probe.sizes import Sizes

_MOST = 6
"""Most different errors that are listed."""
_LEAST = 3
"""Fewest different counts above 0 that show the block size."""


def judge_counts(asker: Asker, sizes: Sizes) -> list[Verdict]:
    """Return the verdicts of all count checks."""
    odd = [each for each in asker.seen if each.answer.odd]
    counted = [each for each in asker.seen if each.answer.cached is not None]
    if not counted and not odd:
        return [Verdict(about, "unsupported", why_uncounted(asker)) for about in _ALL]
    return [
        _each(POSSIBLE, asker, [*odd, *counted], _impossible),
        _last(asker, counted),
        _each(WITHIN, asker, [s for s in counted if s.bound is not None], _beyond),
        _blocks(asker, sizes),
        _monotone(asker, sizes),
        _found(asker, counted, sizes),
    ]


_ALL = (POSSIBLE, LAST, WITHIN, BLOCKS, MONOTONE, FOUND)


def why_uncounted(asker: Asker) -> str:
    """Explain how the server would return counts."""
    reported = asker.facts.rules.counts_option
    return "the server does not report cached_tokens" + (
        f"; it does with: {reported}" if reported else ""
    )


def _each(
    about: Property, asker: Asker, seen: Sequence[Seen], wrong: Callable[[Seen], str]
) -> Verdict:
    hits = sum(asker.found(each.answer) for each in seen)
    situations = Counter({"prompt found": hits, "prompt computed": len(seen) - hits})
    bad = [(each, reported) for each in seen if (reported := wrong(each))]
    if bad:
        return _failed(about, asker, bad, len(seen), situations)
    if not hits:
        why = "no prompt was ever found: is prefix caching on?"
        return Verdict(about, "inconclusive", why, checks=len(seen), situations=situations)
    return Verdict(about, "pass", checks=len(seen), situations=situations)


def _failed(
    about: Property,
    asker: Asker,
    bad: Sequence[tuple[Seen, str]],
    checks: int,
    situations: Counter[str],
) -> Verdict:
    first, reported = bad[0]
    history = _related(asker.line.log, first.number)
    more = f" ({len(bad)} of {checks} answers)" if len(bad) > 1 else ""
    others = list(dict.fromkeys(reported for _, reported in bad))[1:_MOST]
    return Verdict(about, "fail", reported + more, "\n".join(others), checks, situations, history)


def _related(log: Sequence[Sent], place: int) -> list[Sent]:
    return [*(s for s in log[max(0, place - 40) : place] if _alike(s, log[place])), log[place]][-6:]


def _alike(one: Sent, two: Sent) -> bool:
    heads = [
        (sent.body.get("prompt") or str(sent.body.get("messages")))[:12] for sent in (one, two)
    ]
    return bool(heads[0] == heads[1])


def _impossible(seen: Seen) -> str:
    answer = seen.answer
    if answer.odd:
        return f"cached_tokens is {answer.odd}, which is no count"
    if answer.cached is not None and 0 <= answer.cached <= answer.prompt:
        return ""
    return f"{answer.cached} cached tokens of a prompt of {answer.prompt}"


def _last(asker: Asker, counted: Sequence[Seen]) -> Verdict:
    verdict = _each(LAST, asker, counted, _whole)
    if verdict.outcome == "fail" and not asker.facts.rules.computes_last:
        verdict.outcome, verdict.history = "inconclusive", ()
        verdict.reason += f"; what {asker.facts.engine!r} documents is not known"
    return verdict


def _whole(seen: Seen) -> str:
    answer = seen.answer
    if answer.prompt == 0 or answer.cached is None or answer.cached < answer.prompt:
        return ""
    return f"all {answer.prompt} tokens of a prompt were found, so that none gave the answer"


def _beyond(seen: Seen) -> str:
    answer, bound = seen.answer, seen.bound
    if bound is None or answer.cached is None or answer.cached <= max(0, bound):
        return ""
    if seen.question.unshared == seen.question.words:
        return f"{answer.cached} tokens of a prompt were found that no earlier request had sent"
    return f"{answer.cached} tokens were found, although only {bound} had been sent before"


def _blocks(asker: Asker, sizes: Sizes) -> Verdict:
    if asker.facts.form != "ids":
        return Verdict(BLOCKS, "unsupported", asker.facts.missing.get("exact lengths", ""))
    different = {rung.cached for rung in sizes.ladder if rung.cached}
    situations = Counter({"hit of another length": len(different)})
    if not sizes.step or len(different) < _LEAST:
        why = f"{len(different)} different lengths were found, {_LEAST} are needed"
        if asker.facts.longest:
            why += f"; with {asker.facts.longest:,} tokens of a prompt it takes smaller blocks"
        return Verdict(BLOCKS, "inconclusive", why, situations=situations)
    misplaced = [
        r for r in sizes.ladder if _grows(sizes, r) and (r[0] - sizes.smallest) % sizes.step
    ]
    if misplaced or sizes.falls:
        why = "hits do not grow at equal distances, so the block size is unknown"
        return Verdict(BLOCKS, "inconclusive", why, situations=situations)
    wrong = [each for each in sizes.ladder if each.cached % sizes.step]
    if wrong:
        reported = (
            f"hits grow every {sizes.step} tokens, but {wrong[0].cached} tokens were found of "
            f"{wrong[0].shared} shared ones"
        )
        rungs = [(s, reported) for s in asker.seen if s.answer.cached == wrong[0].cached]
        return _failed(BLOCKS, asker, rungs[:1], len(sizes.ladder), situations)
    reported = f"blocks of {sizes.step} tokens; found from {sizes.smallest} on"
    return Verdict(BLOCKS, "pass", reported, checks=len(sizes.ladder), situations=situations)


def _grows(sizes: Sizes, rung: tuple[int, int]) -> bool:
    """Return whether the hit is longer than with one word less, if both were sent."""
    below = dict(sizes.ladder).get(rung[0] - 1)
    return below is not None and rung[1] > below


def _monotone(asker: Asker, sizes: Sizes) -> Verdict:
    pairs = list(zip(sizes.ladder, sizes.ladder[1:], strict=False))
    situations = Counter({"prefix shared in part": len(sizes.ladder)})
    if not any(rung.cached > asker.floor for rung in sizes.ladder):
        why = "no shared prefix was ever found"
        return Verdict(MONOTONE, "inconclusive", why, situations=situations)
    if sizes.fell:
        low, high, place = sizes.fell
        why = (
            f"{high.cached} tokens were found of {high.shared} shared words, but {low.cached} of "
            f"{low.shared}, both before and after"
        )
        return _failed(MONOTONE, asker, [(asker.seen[place], why)], len(pairs), situations)
    if sizes.falls:
        low, high = sizes.falls
        why = (
            f"{high.cached} tokens were found of {high.shared} shared words, {low.cached} of "
            f"{low.shared}, but not a second time: blocks may have been evicted"
        )
        return Verdict(MONOTONE, "inconclusive", why, situations=situations)
    return Verdict(MONOTONE, "pass", sizes.sentence, checks=len(pairs), situations=situations)


def _found(asker: Asker, counted: Sequence[Seen], sizes: Sizes) -> Verdict:
    again = [
        s
        for s in counted
        if s.question.again and s.answer.prompt > 2 * sizes.block + 1 and not _has_image(s)
    ]
    hits = [each for each in again if asker.found(each.answer)]
    situations = Counter({"prompt repeated": len(again), "prompt found again": len(hits)})
    if not hits:
        why = "no prompt was ever found: is prefix caching on?"
        return Verdict(FOUND, "inconclusive", why, checks=len(again), situations=situations)
    short = [each for each in again if (each.answer.cached or 0) < _expected(each, sizes)]
    if short:
        first = short[0].answer
        why = (
            f"{len(short)} of {len(again)} prompts were found less far than their whole blocks "
            f"go (first: {first.cached} of {first.prompt} tokens): layers that keep less, "
            f"eviction, or lost hits"
        )
        return Verdict(FOUND, "inconclusive", why, checks=len(again), situations=situations)
    return Verdict(FOUND, "pass", checks=len(again), situations=situations)


def _has_image(seen: Seen) -> bool:
    """Whether a prompt has an image: the template decides where it ends, also just before a border.

    Where partial blocks are cached, a filled one takes the place of the partial one (T6).
    """
    return any(turn.image for turn in seen.question.turns)


def _expected(seen: Seen, sizes: Sizes) -> int:
    return (seen.answer.prompt - 1) // max(1, sizes.block) * sizes.block
