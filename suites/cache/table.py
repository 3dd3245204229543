"""The properties as a Markdown table: the docs and `kvproof run --list-properties` share it."""

from __future__ import annotations

from kvproof.suites.cache.properties import PROPERTIES, Property

_HEAD = """\
| property | rules | what it demands | needs of the profile |
| --- | --- | --- | --- |
"""


def properties_table() -> str:
    """One row per property, in the order of the rules; ends with a newline."""
    return _HEAD + "".join(map(_row, PROPERTIES))


def _row(prop: Property) -> str:
    needs = f"`{prop.needs}`" if prop.needs else ""
    return f"| `{prop.name}` | {' '.join(prop.rules)} | {prop.sentence} | {needs} |\n"
