"""The dashboard: certificates of engines, releases and classes, with their history.

They come from `suites/specification/certificates`, and from the folders that
`KVPROOF_CERTIFICATES` names, with colons between them. They are data of others: HTML, escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path

from kvproof.suites import specification
from kvproof.suites.specification.certificate import Certificate, RuleVerdict
from kvproof.suites.specification.classes import CLASSES
from kvproof.suites.tests.documents import collection
from kvproof.suites.tests.documents.collection import Entry, Series

FOLDER = Path(specification.__path__[0]) / "certificates"
VARIABLE = "KVPROOF_CERTIFICATES"

_MARKS = {
    "conformant": "✓",
    "partially conformant": "≈",
    "inconclusive": "?",
    "not conformant": "✗",
}
"""Outcome -> its sign: never by colour alone."""
_WORDS = {
    "known_failure": "known failure",
    "engine_failure": "failure of the engine",
    "not_claimed": "not claimed",
}


@cache
def entries() -> tuple[Entry, ...]:
    """Return all files. Raises UsageError for a folder that is not there."""
    more = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return tuple(collection.collected([FOLDER, *map(Path, more)]))


def tables() -> str:
    """Return the matrix, the histories and the refused files, for a page of the site."""
    return page(entries())


def page(found: Sequence[Entry]) -> str:
    """Return the tables of some files, as HTML between Markdown headings."""
    parts = [_matrix(found), "\n## History\n", *_histories(found)]
    if refused := [each for each in found if each.problem]:
        rows = ([each.file, each.problem] for each in refused)
        parts += ["\n## Not counted\n", _table(["file", "reason"], map(_escaped_row, rows))]
    return "\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """Return path below the site -> the page of each certificate that counts."""
    return {
        f"engines/certificates/{each.digest}.md": _rules(each.certificate)
        for each in entries()
        if each.certificate and not each.problem
    }


def _matrix(found: Sequence[Entry]) -> str:
    """Show the newest certificate of each release and class; a gap is no verdict."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    digests = {id(each.certificate): each.digest for each in found}
    for each in collection.counting(found):
        row = cells.setdefault((collection.name_of(each), collection.text(each.version)), {})
        row[each.conformance_class] = _linked(each, digests[id(each)])
    ordered = sorted(cells, key=lambda key: (key[0], [-part for part in collection.order(key[1])]))
    rows = (
        [*_escaped_row(key), *(cells[key].get(name, _NONE) for name in CLASSES)] for key in ordered
    )
    return _table(["target", "release", *CLASSES], rows)


_NONE = '<span title="no certificate">–</span>'  # noqa: RUF001 - a dash is what a table cell shows


def _linked(each: Certificate, digest: str) -> str:
    return f'<a href="certificates/{digest}.html">{_outcome(each)}</a><br>{_counts(each)}'


def _outcome(each: Certificate) -> str:
    return f"{_MARKS[each.outcome]} {each.outcome}".replace(" ", "&nbsp;")


def _counts(each: Certificate) -> str:
    return "<br>".join(
        f"{passed}/{claimed}&nbsp;{kind}"
        for kind in ("core", "extended")
        for passed, claimed in (collection.passed(each, kind),)
    )


def _histories(found: Iterable[Entry]) -> Iterator[str]:
    for key, certificates in collection.histories(found).items():
        if len(certificates) > 1:
            yield f"<h3>{escape(key.name)}, class {escape(key.conformance_class)}</h3>"
            yield f"<p>{_compared(key)}</p>"
            yield _table(["release", "outcome", "rules that pass", "changed"], _steps(certificates))


def _compared(key: Series) -> str:
    return escape(f"Specification {key.specification}; {key.judge}; {key.device}.")


def _steps(certificates: Sequence[Certificate]) -> Iterator[Sequence[str]]:
    for before, each in zip([None, *certificates], certificates, strict=False):
        changed = collection.changes(before, each) if before else ()
        words = "; ".join(f"{rule}: {_word(old)} → {_word(new)}" for rule, old, new in changed)
        yield (escape(collection.text(each.version)), _outcome(each), _counts(each), escape(words))


def _word(outcome: str) -> str:
    return _WORDS.get(outcome, outcome)


def _rules(each: Certificate) -> str:
    facts = {
        "target": each.target,
        "class": f"{each.conformance_class}, specification {each.specification}",
        "outcome": f"{_MARKS[each.outcome]} {each.outcome}",
        "build": ", ".join(f"{key} {value}" for key, value in sorted(each.build.items())),
        "judge": collection.series_of(each).judge,
        "device": collection.series_of(each).device,
        "started": each.started,
        "planted faults found": ", ".join(
            f"{power.found} of {power.planted} in {power.subject}" for power in each.power
        ),
    }
    head = _table(["", ""], map(_escaped_row, facts.items()))
    rules = _table(["rule", "kind", "outcome", "why"], map(_rule, each.rules))
    return f"# Certificate\n\n{head}\n\n## Rules\n\n{rules}\n"


def _rule(each: RuleVerdict) -> list[str]:
    broken = [prop for prop in each.properties if prop.verdict not in ("pass", "unsupported")]
    why = "; ".join(f"{prop.property}: {prop.reason}" for prop in broken[:3])
    return _escaped_row([each.rule, each.kind, _word(each.outcome), why])


def _escaped_row(row: Iterable[str]) -> list[str]:
    return [escape(collection.text(each)) for each in row]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML."""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    heads = "".join(f"<th>{each}</th>" for each in head)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
