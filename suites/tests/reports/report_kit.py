"""The recorded run that reports are tested on, and ways to change and read it."""

from __future__ import annotations

import io
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.run_directory import Manifest, Run, read_run
from kvproof.reports.render.terminal import print_run

SNAPSHOTS = Path(__file__).parent / "snapshots"
RECORDED = SNAPSHOTS / "report_run"
"""Written by hand, no measurement: a gate of three targets with every kind of event and verdict."""

HOSTILE = (
    "</script></style></title><img src=x onerror=alert(1)>\"'`&{{7*7}}{% raw %}{#"
    "\x1b[31m\x00\x9b\u202e]]>--><!--|```\n\n# x\n[y](javascript:alert(1))\ud83d"
)
CLOSED = {"event", "verdict", "kind", "state", "isolation", "outcome", "rule", "device"}
"""Fields with a closed set of values: nothing foreign can stand in them."""

RECORDS = {"history", "blocks", "devices", "kernels", "providers", "requests", "spans", "launches",
           "rows", "transfers", "slots"}  # fmt: skip
"""Lists of records."""


def structured(key: str, within: str) -> bool:
    """Whether a value is a record, and no dictionary with free keys."""
    return key in ("allowed", "cost", "resources", "timeline") or within in ("values", "errors")


def recorded_run() -> Run:
    recorded = read_run(RECORDED)
    assert recorded.torn == 0
    return msgspec.structs.replace(recorded, directory=Path("runs/gate"))


def with_events(run: Run, events: list[AnyEvent]) -> Run:
    return msgspec.structs.replace(run, events=events)


def changed(value: Any, kind: Any, strings: Any, numbers: Any) -> Any:
    """The same record with every free string and every number replaced."""

    def walk(item: Any, name: str = "", *, record: bool = False) -> Any:
        if isinstance(item, dict):
            return {
                key if record else strings(key): walk(inner, key, record=structured(key, name))
                for key, inner in item.items()
            }
        if isinstance(item, list):
            return [walk(inner, name, record=name in RECORDS) for inner in item]
        if isinstance(item, str):
            return item if name in CLOSED else strings(item)
        return numbers(item) if type(item) in (int, float) else item

    return msgspec.convert(walk(msgspec.to_builtins(value), record=True), kind)


def mutated(run: Run, strings: Any = lambda x: x, numbers: Any = lambda x: x) -> Run:
    return msgspec.structs.replace(
        run,
        manifest=changed(run.manifest, Manifest, strings, lambda number: number),
        events=[changed(event, AnyEvent, strings, numbers) for event in run.events],
    )


def terminal_text(run: Run, *, width: int = 80, encoding: str = "utf-8", tty: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_run(run, Console(file=file, force_terminal=tty, width=width, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


def same_as_snapshot(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get("KVPROOF_UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} changed; if that is meant, set KVPROOF_UPDATE_SNAPSHOTS=1 and read the difference"
    )


class Page(HTMLParser):
    """Tags, attributes, ids and links of a page; fails on tags that do not close."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self._open.append(tag)
        self._saw(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._saw(tag, attrs)

    def _saw(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


TAGS = frozenset(
    """a article b body br caption code dd details div dl dt figcaption figure footer h1 h2 h3 h4
    head header html i li meta nav p path pre rect section span style summary svg table tbody td
    text th thead title tr ul""".split()  # noqa: SIM905 - a paragraph is easier to read
)


# -- what a report says --------------------------------------------------------------------------
