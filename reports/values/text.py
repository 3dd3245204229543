"""Words, symbols and numbers of all renderers."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from kvproof.harness.foreign_text import clean as clean
from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.run_directory import Manifest, Run


class Mark(NamedTuple):
    """Display of a verdict: never by colour alone."""

    symbol: str
    plain: str
    """For consoles without UTF-8."""
    word: str


MARKS = {
    "fail": Mark("✗", "x", "FAIL"),
    "inconclusive": Mark("?", "?", "inconclusive"),
    "expected_failure": Mark("≈", "~", "expected failure"),
    "pass": Mark("✓", "+", "pass"),
    "unsupported": Mark("–", "-", "unsupported"),  # noqa: RUF001 - a dash is what a table cell shows
    "not_run": Mark("·", ".", "not run"),
}
"""The worst first."""

MISSING = "not measured"

_UNITS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))


def clean_run(run: Run) -> Run:
    """The same run with every string made safe to show."""
    return Run(
        directory=run.directory,
        manifest=_cleaned(run.manifest, Manifest),
        events=[_cleaned(event, AnyEvent) for event in run.events],
        torn=run.torn,
    )


_ESCAPED = re.compile(r"\\[bfru]")
"""Control characters in JSON."""


def _cleaned(value: object, kind: Any) -> Any:
    """Most are clean already: there may be a hundred thousand."""
    with suppress(UnicodeEncodeError):  # half a surrogate pair
        text = msgspec.json.encode(value).decode()
        if not _ESCAPED.search(text) and clean(text) == text:
            return value
    return msgspec.convert(_clean_tree(msgspec.to_builtins(value)), kind)


def _clean_tree(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_clean_tree(key): _clean_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_tree(item) for item in value]
    return value


def one_line(text: str) -> str:
    """Fold whitespace, for table cells and log lines."""
    return " ".join(text.split())


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, with the number of omitted ones."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def tail(text: str, limit: int) -> str:
    """The last `limit` characters, with the number of omitted ones."""
    if len(text) <= limit:
        return text
    return f"({len(text) - limit:,} characters before)…{text[-limit:]}"


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to this many significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


def digits_of(value: float, low: float, high: float) -> int:
    """Significant digits, 2 to 4, that the spread low..high leaves to `value`."""
    spread = abs(high - low)
    if not spread or not value:
        return 3
    return min(4, max(2, math.ceil(math.log10(abs(value) / spread)) + 1))


def scaled(value: float, digits: int = 3) -> str:
    """`value` with a decimal prefix: 214 M."""
    for prefix, unit in _UNITS:
        shown = significant(value / unit, digits)
        if abs(float(shown.replace(",", ""))) < 1000 or prefix == "T":
            break
    return f"{shown} {prefix}".rstrip()


def tick(value: float) -> str:
    """A round value on an axis: `50 M`, not `50.0 M`."""
    number, _, prefix = scaled(value).partition(" ")
    return f"{trimmed(number)} {prefix}".rstrip()


def trimmed(number: str) -> str:
    """Without trailing zeros after the decimal point."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def scaled_range(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Median and interval, with as many digits as the interval allows."""
    digits = digits_of(value, low, high)
    return scaled(value, digits), scaled(low, digits), scaled(high, digits)


def percent(share: float | None, decimals: int = 1) -> str:
    """`share` of one as percent."""
    return MISSING if share is None else f"{share * 100:.{decimals}f} %"


def duration(seconds: float) -> str:
    """A span of time in a fitting unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{significant(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def microseconds(value: float) -> str:
    """A latency given in microseconds."""
    if value < 1000:
        return f"{significant(value)} µs"
    return f"{significant(value / 1e3)} ms" if value < 1e6 else f"{significant(value / 1e6)} s"


def plural(number: int, noun: str) -> str:
    """`3 blocks`, `1 property`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("ty") else f"{number:,} {noun}s"


def listed(items: list[str], limit: int = 4) -> str:
    """`a, b and 3 more`."""
    if len(items) <= limit:
        return ", ".join(items)
    return f"{', '.join(items[:limit])} and {len(items) - limit:,} more"


def short_path(path: str) -> str:
    """`corpus/x.json` for an op log that ships with kvproof; any other path as it is."""
    _, shipped, name = path.rpartition("/suites/corpus/")
    return f"corpus/{name}" if shipped else path
