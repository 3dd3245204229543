"""All properties as Markdown: the docs and `kvproof run --list-properties` share it."""

from __future__ import annotations

from kvproof.suites.framework.property import Property
from kvproof.suites.runner.levels import catalogue

_HEAD = """\
| property | rules | what it demands | judged by | situations it needs | needs of the profile |
| --- | --- | --- | --- | --- | --- |
"""


def properties_table() -> str:
    """One table per suite, one row per property, in the order of the rules; ends with a newline."""
    return "\n".join(
        f"## {name}\n\n{_HEAD}{''.join(map(_row, properties))}"
        for name, properties in catalogue("full").items()
    )


def _row(prop: Property) -> str:
    needs = [f"`{prop.needs}`"] if prop.needs else []
    if prop.level != "core":
        needs.append(f"level {prop.level}")
    cells = (
        f"`{prop.name}`",
        " ".join(prop.rules),
        prop.sentence,
        prop.oracle,
        "; ".join(prop.situations),
        ", ".join(needs),
    )
    return f"| {' | '.join(cells)} |\n"
