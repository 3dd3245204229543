"""Options that several verbs have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, get_args

from cyclopts import Parameter, Token, convert

from kvproof.harness.decoding import NotValid, check_number, shown
from kvproof.harness.errors import UsageError

Targets: TypeAlias = Annotated[
    list[str] | None, Parameter(("--target", "--targets"), consume_multiple=True)
]
Output: TypeAlias = Annotated[Path | None, Parameter("--output")]


def check_option(_: object, value: object) -> None:
    """Refuse numbers of an option that are none, in lists and sets of options too.

    Raises NotValid.
    """
    if is_dataclass(value):
        for name, each in vars(value).items():
            try:
                check_option(None, each)
            except NotValid as error:
                raise NotValid(f"--{name.strip('_').replace('_', '-')}: {error}") from None
    for each in value if isinstance(value, list | tuple) else (value,):
        check_number(each)


def converted(kind: object, tokens: Sequence[Token]) -> object:
    """Convert the words of an option; refuse a text that cyclopts takes for another value.

    It rounds 1.5 to 2 where a whole number is needed, and an empty path is the working directory.
    Raises ValueError.
    """
    kinds = set(_kinds(kind))
    for token in tokens:
        if int in kinds and float not in kinds and "." in token.value:
            raise ValueError(f"{shown(token.value)} is not a whole number")
        if Path in kinds and not token.value:
            raise ValueError("'' names no file and no folder; . is this folder")
    return convert(kind, tokens)


def _kinds(kind: object) -> Iterator[object]:
    """Yield a type and all that it is made of: `list[int] | None`, `list[int]`, `int`, `None`."""
    yield kind
    for each in get_args(kind):
        yield from _kinds(each)


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Accept `--kernels a,b`, `--kernels "a b"` and `--kernels a --kernels b`; each name once.

    Raises UsageError for a list that was given and is empty: it must not mean the default.
    """
    found = [name for item in given or () for name in item.replace(",", " ").split()]
    if given and not found:
        raise UsageError(f"{given[0]!r} names nothing", "give a name, or leave the option out")
    return tuple(dict.fromkeys(found))


MOST = "KVPROOF_MOST_WORKERS"
"""Environment variable that allows more worker processes."""
_FOR_EACH_CORE = 8


def check_workers(count: int, *, least: int = 1) -> None:
    """Raise UsageError for a number of workers that no machine of this size is for."""
    if count < least:
        raise UsageError(f"--workers {count} must be at least {least}", "for example --workers 2")
    cores = os.cpu_count() or 1
    allowed = os.environ.get(MOST, "")
    most = int(allowed) if allowed.isdecimal() and len(allowed) < 7 else _FOR_EACH_CORE * cores
    if count > most:
        raise UsageError(
            f"--workers {count} is more than {most}: this machine has {cores} cores",
            f"if that is meant: {MOST}={count} in the environment",
        )
