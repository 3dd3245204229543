"""Properties are read from a table; a mistake in the table is an error when it is imported."""

from __future__ import annotations

import pytest

from kvproof.harness.oracle.violation import BRUTE_FORCE
from kvproof.suites.framework.property import Property, table

NAMES = {"HIT": "a request hits", "_BAD": {"cut": "a file is cut"}, "TWO": ("one", "two")}
TABLE = """
a_hit_is_valid | X1 X2 | HIT _BAD | by brute force | needs windows | level full
    a hit is valid
    in every group
    why: a request reads pages
    of another
    - a text
    - TWO
a_block_has_an_owner | B1
    a block has an owner
"""


def test_a_row_has_name_rules_sentence_situations_and_options() -> None:
    situations = ("a request hits", "a file is cut", "a text", "one", "two")
    sentence = "a hit is valid in every group"
    options = ("windows", BRUTE_FORCE, "full", "a request reads pages of another")
    first = Property("a_hit_is_valid", ("X1", "X2"), sentence, situations, *options)
    second = Property("a_block_has_an_owner", ("B1",), "a block has an owner")
    assert table(NAMES, TABLE) == (first, second)


def test_a_table_has_a_level() -> None:
    assert [prop.level for prop in table(NAMES, TABLE, level="full")] == ["full", "full"]


def test_an_unknown_constant_is_an_error() -> None:
    with pytest.raises(KeyError, match="MISS"):
        table(NAMES, "a_name | B1 | MISS\n    a sentence")


@pytest.mark.parametrize("text", ["a_name | B1", "a_name | HIT\n    - HIT", "a_name | none\n    a"])
def test_a_row_without_rules_or_sentence_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="'a_name' has no rules or no sentence"):
        table(NAMES, text)
