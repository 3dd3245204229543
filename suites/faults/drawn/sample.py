"""Draw faults: a line that the suites execute, then an operator, then a place on that line."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import count
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from kvproof.suites.faults.catalogue import PlantedFault
from kvproof.suites.faults.drawn.equal_types import EqualTypes
from kvproof.suites.faults.drawn.operators import Site, sites


class Executed(NamedTuple):
    """A module of the subject, and its lines that a run has executed in functions."""

    module: str
    path: Path
    lines: frozenset[int]


class Drawn(NamedTuple):
    """The faults of a sample, and the lines that were passed over on the way."""

    faults: list[PlantedFault]
    plain: int
    """Lines drawn that no operator changes, for example those of a docstring or a plain name."""
    lines: int
    """Executed lines to draw from."""


def draw(modules: Iterable[Executed], size: int, seed: int, target: str) -> Drawn:
    """Draw `size` different faults, uniformly over executed lines; fewer if there are no more."""
    files = [_File(each) for each in modules]
    types = EqualTypes(each.tree for each in files)
    places = [(file, line) for file in files for line in sorted(file.executed.lines)]
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    rng.shuffle(places)
    faults, plain = dict[tuple[str, str], PlantedFault](), 0
    for file, line in places:
        if len(faults) == size:
            break
        fault = file.draw(line, types, rng, f"drawn-{seed}-{len(faults) + 1}", target)
        if fault is None:
            plain += 1
        else:
            faults.setdefault((fault.module, fault.new), fault)
    return Drawn(list(faults.values()), plain, len(places))


def changes(executed: Executed, change: str, target: str) -> Iterator[PlantedFault]:
    """Return the faults of a module that make a change, in the words of a fault's story."""
    file = _File(executed)
    types = EqualTypes([file.tree])
    for line in sorted(executed.lines):
        yield from file.changes(line, types, change, target)


class _File:
    def __init__(self, executed: Executed) -> None:
        self.executed = executed
        self._source = executed.path.read_text(encoding="utf-8")
        self._lines = self._source.splitlines(keepends=True)
        self._sites: Mapping[int, list[Site]] | None = None

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the module."""
        return ast.parse(self._source)

    def draw(
        self, line: int, types: EqualTypes, rng: random.Random, name: str, target: str
    ) -> PlantedFault | None:
        """Draw an operator and a place on a line; None if nothing can be changed there."""
        found = defaultdict[str, list[Site]](list)
        for site in self._at(types).get(line, ()):
            found[site.operator].append(site)
        while found:
            operator = rng.choice(sorted(found))
            site = found[operator].pop(rng.randrange(len(found[operator])))
            if not found[operator]:
                del found[operator]
            if edit := self._edit(site):
                return self._fault(site, edit, name, target)
        return None

    def changes(
        self, line: int, types: EqualTypes, change: str, target: str
    ) -> Iterator[PlantedFault]:
        """Return the faults on a line that make this change."""
        for site in self._at(types).get(line, ()):
            if self._change(site) == change and (edit := self._edit(site)):
                yield self._fault(site, edit, "listed", target)

    def _at(self, types: EqualTypes) -> Mapping[int, list[Site]]:
        if self._sites is None:
            by_line = defaultdict[int, list[Site]](list)
            for site in sites(self.tree, types):
                by_line[site.node.lineno].append(site)
            self._sites = by_line
        return self._sites

    def _fault(self, site: Site, edit: tuple[str, str], name: str, target: str) -> PlantedFault:
        return PlantedFault(
            name=name,
            story=f"line {site.node.lineno}: {self._change(site)}",
            module=self.executed.module,
            old=edit[0],
            new=edit[1],
            mechanism=f"drawn_{site.operator}",
            promise="any",
            target=target,
        )

    def _change(self, site: Site) -> str:
        node = ast.get_source_segment(self._source, site.node) or ""
        old, new = (" ".join(text.split()) for text in (node, site.text))
        return f"{new} for {old}"

    def _edit(self, site: Site) -> tuple[str, str] | None:
        """Return whole lines that occur once, and their replacement; None if it cannot be planted.

        Code of a running function can be replaced only if it has the same free variables.
        """
        node = site.node
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        changed = self._source[:start] + site.text + self._source[end:]
        if not _fits(self._source, changed):
            return None
        first, last = node.lineno, node.end_lineno or node.lineno
        grown = changed.count("\n") - self._source.count("\n")
        for old in self._around(first, last):
            if self._source.count(text := "".join(self._lines[old.start : old.stop])) == 1:
                rows = changed.splitlines(keepends=True)[old.start : old.stop + grown]
                return text, "".join(rows)
        return None

    def _offset(self, line: int, column: int) -> int:
        before = "".join(self._lines[: line - 1])
        return len(before) + len(self._lines[line - 1].encode()[:column].decode())

    def _around(self, first: int, last: int) -> Iterator[range]:
        """Return growing ranges of lines around some."""
        for more in count():
            lines = range(max(first - 1 - more, 0), min(last + more, len(self._lines)))
            yield lines
            if len(lines) == len(self._lines):
                return


def _fits(source: str, changed: str) -> bool:
    try:
        compiled = compile(changed, "changed", "exec")
    except SyntaxError:
        return False
    return _free(compile(source, "changed", "exec")) == _free(compiled)


def _free(code: CodeType) -> list[tuple[str, tuple[str, ...]]]:
    found = [(code.co_name, code.co_freevars)]
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += _free(each)
    return found
