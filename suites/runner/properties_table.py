"""All properties as Markdown, for the docs and `kvproof run --list-properties`."""

from __future__ import annotations

from kvproof.suites.framework.property import Property
from kvproof.suites.runner.levels import catalogue

_HEAD = """\
| property | rules | what it demands | judged by | situations it needs | needs of the profile |
| --- | --- | --- | --- | --- | --- |
"""


def properties_table() -> str:
    """Return one table per suite, one row per property, in rule order; ends with a newline."""
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
