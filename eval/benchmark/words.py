"""Vocabulary of generated documents: names, values, and filler sentences."""

from __future__ import annotations

import random

FIRST = tuple(
    """amber ashen azure brisk bronze calm cedar chalk cobalt copper coral crimson dapple dusky
    ember fallow flint frosty gilded hazel indigo ivory jade lilac marble mellow misty mossy ochre
    olive opal pearl quiet russet sable saffron sandy silver slate tawny umber velvet violet waxen
    willow wintry""".split()  # noqa: SIM905 - a hundred quotes hide the words
)

SECOND = tuple(
    """badger bittern brook bunting canyon clover comet cormorant cricket delta egret falcon fern
    finch garnet glacier grouse harrier heron ibis juniper kestrel lagoon lantern lark linnet lynx
    magpie marten meadow merlin orchid osprey otter petrel pipit plover quarry raven sparrow
    starling swallow tern thicket thistle warbler wren""".split()  # noqa: SIM905 - as above
)

PLACES = tuple(
    """alcove annex arcade archive attic balcony basement bastion berth booth cabin cellar chamber
    cloister corridor courtyard depot dock foyer gallery garage garret granary hall hangar jetty
    kiosk kitchen landing larder library loft lobby pantry parlour pavilion pier porch refectory
    rotunda stable studio terrace tower vault veranda wharf workshop""".split()  # noqa: SIM905 - as above
)

SIDES = tuple(
    """northern southern eastern western upper lower inner outer old new narrow wide first second
    third fourth fifth sixth red green blue white black yellow""".split()  # noqa: SIM905 - as above
)

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
_ENDINGS = ("nor", "ric", "das", "lin", "mir", "ves", "tan", "rok", "sel", "bur")

PEOPLE = tuple(
    f"{onset}{vowel}{ending}".capitalize()
    for onset in _ONSETS
    for vowel in "aeiou"
    for ending in _ENDINGS
)

_WHO = ("the committee", "a visitor", "the night shift", "an auditor", "the council", "a trainee",
        "the printer", "the wardens", "a neighbour", "the clerks")  # fmt: skip
_DID = ("discussed", "postponed", "praised", "questioned", "summarised", "approved", "mentioned",
        "reviewed", "ignored", "announced")  # fmt: skip
_WHAT = ("the weather", "a change of the menu", "the annual budget", "the length of the meeting",
         "the state of the roads", "a letter from abroad", "the opening hours", "the new uniforms",
         "last year's minutes", "the price of paper")  # fmt: skip
_WHEN = ("in the morning", "before noon", "after lunch", "on a Monday", "in early spring",
         "during the holidays", "without a vote", "for the third time", "in a few words",
         "at great length")  # fmt: skip


def names(rng: random.Random, count: int) -> list[str]:
    """Draw this many different names of two words."""
    picked = rng.sample(range(len(FIRST) * len(SECOND)), count)
    return [f"{FIRST[n // len(SECOND)]} {SECOND[n % len(SECOND)]}" for n in picked]


def places(rng: random.Random, count: int) -> list[str]:
    """Draw this many different places of two words."""
    picked = rng.sample(range(len(SIDES) * len(PLACES)), count)
    return [f"{SIDES[n // len(PLACES)]} {PLACES[n % len(PLACES)]}" for n in picked]


def people(rng: random.Random, count: int) -> list[str]:
    """Draw this many different people."""
    return rng.sample(PEOPLE, count)


def filler(rng: random.Random) -> str:
    """A sentence without a fact."""
    who, did, what, when = (rng.choice(each) for each in (_WHO, _DID, _WHAT, _WHEN))
    return f"{who} {did} {what} {when}."
