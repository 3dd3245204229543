"""How far two distributions of one next token are apart, as far as a server reports them."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvproof.harness.http.completion import Chance

SMALLEST = 1e-9
"""A probability that counts as none: differences beyond it have no end."""


class Difference(NamedTuple):
    """Between two distributions."""

    largest: float
    """Largest difference of one log-probability, in nats; without log-probabilities 1 for another
    token and 0 for the same."""
    kl: float
    """Kullback and Leibler's divergence, in nats, over the tokens of both lists and the rest
    together. The true one is at least that."""


def difference(before: Chance, after: Chance) -> Difference:
    """Compare two distributions that follow equal tokens."""
    if before.logprob is None or after.logprob is None:
        other = float(before.token != after.token)
        return Difference(other, other)
    one, two = _listed(before), _listed(after)
    both = one.keys() & two.keys()
    found = [abs(one[token] - two[token]) for token in both]
    found += [gap for a, b in ((one, two), (two, one)) if (gap := _left_out(a, b)) > 0]
    return Difference(max(found, default=0.0), _divergence(one, two, both))


def _listed(chance: Chance) -> dict[str, float]:
    floor = math.log(SMALLEST)
    listed = {**dict(chance.top), chance.token: chance.logprob or 0.0}
    return {token: max(floor, value) for token, value in listed.items() if not math.isnan(value)}


def _left_out(one: dict[str, float], two: dict[str, float]) -> float:
    """Return the least difference of a token that only `one` lists."""
    missing = [value for token, value in one.items() if token not in two]
    return max(missing) - _most(two, 1) if missing else 0.0


def _most(listed: dict[str, float], count: int) -> float:
    """Return the largest log-probability of `count` tokens that are not listed, together.

    Each has less than every listed one, and all have no more than those leave.
    """
    left = max(SMALLEST, 1 - math.fsum(math.exp(value) for value in listed.values()))
    return min(min(listed.values()) + math.log(count), math.log(left))


def _divergence(one: dict[str, float], two: dict[str, float], both: set[str]) -> float:
    """Over the tokens of both lists, those that only `one` lists together, and the rest."""
    terms = [math.exp(one[token]) * (one[token] - two[token]) for token in both]
    mine = math.fsum(math.exp(value) for token, value in one.items() if token not in both)
    p, q = (1 - math.fsum(math.exp(each[token]) for token in both) for each in (one, two))
    p, q = max(p, SMALLEST), max(q, SMALLEST)
    alone = min(max(mine, 0.0), p)
    theirs = q * alone / p  # the least divergence, unless `two` cannot give them as much
    if alone > 0:
        theirs = min(theirs, math.exp(_most(two, len(one) - len(both))))
    pairs = [(alone, theirs), (p - alone, q - theirs)]
    terms += [a * math.log(a / max(b, SMALLEST)) for a, b in pairs if a > SMALLEST]
    return max(0.0, math.fsum(terms))
