"""Which ways every branch of a function can go, from its bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType

from kvproof.suites.tests.mutation.executed_lines import EXIT, Arc

_ALWAYS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def functions(path: Path) -> Iterator[CodeType]:
    """Yield the functions and methods of a file, also inner ones."""
    codes = [compile(path.read_text(), str(path), "exec")]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        if code.co_flags & CO_NEWLOCALS and not code.co_name.startswith("<"):
            yield code


def branches(code: CodeType) -> set[Arc]:
    """Return (line, next line) for each line that can be followed by different ones.

    Choices within a line are no branch, and neither are exceptions.
    """
    by_offset = {each.offset: each for each in dis.get_instructions(code)}
    following = dict(zip(by_offset, [*by_offset][1:], strict=False))
    lines = _lines(code, by_offset)
    arcs = {
        (lines[offset], line)
        for offset in _reachable(by_offset, following)
        if lines[offset]
        and by_offset[offset].opcode in _JUMPS
        and by_offset[offset].opname not in _ALWAYS
        for step in _next(by_offset[offset], following)
        for line in _first_lines(step, lines[offset], by_offset, following, lines)
    }
    ways: dict[int, set[Arc]] = {}
    for arc in arcs:
        ways.setdefault(arc[0], set()).add(arc)
    return {arc for each in ways.values() if len(each) > 1 for arc in each}


def _lines(code: CodeType, by_offset: dict[int, dis.Instruction]) -> dict[int, int]:
    """Return the line of every instruction; 0: it belongs to none, as the end of a loop."""
    known = {o: line or 0 for a, b, line in code.co_lines() for o in range(a, b, 2)}
    return {offset: known.get(offset, 0) for offset in by_offset}


def _next(each: dis.Instruction, following: dict[int, int]) -> list[int]:
    if each.opname in _ENDS:
        return []
    ahead = [] if each.opname in _ALWAYS else [following[each.offset]]
    return [*ahead, each.argval] if each.opcode in _JUMPS else ahead


def _reachable(by_offset: dict[int, dis.Instruction], following: dict[int, int]) -> set[int]:
    """Return what runs without an exception."""
    found, left = set[int](), [0]
    while left:
        offset = left.pop()
        if offset not in found:
            found.add(offset)
            left += _next(by_offset[offset], following)
    return found


def _first_lines(
    step: int,
    line: int,
    by_offset: dict[int, dis.Instruction],
    following: dict[int, int],
    lines: dict[int, int],
) -> set[int]:
    """Return the lines that may come first after `line`, from the instruction `step` on."""
    found, seen, left = set[int](), set[int](), [step]
    while left:
        offset = left.pop()
        if offset in seen:
            continue
        seen.add(offset)
        if lines[offset] not in (line, 0):
            found.add(lines[offset])
        elif by_offset[offset].opname in _ENDS:
            found |= {EXIT} if by_offset[offset].opname.startswith("RETURN") else set()
        else:
            left += _next(by_offset[offset], following)
    return found
