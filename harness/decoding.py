"""Values of users -> checked records: the constrained types, and the one way to decode into them.

Options, settings, configurations of evaluations and models, baselines and op logs pass through
here. A number is finite and of a sensible size; a wrong one is refused with its value and the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import tomllib
from msgspec import Meta

from kvproof.harness import strict_json
from kvproof.harness.errors import UsageError

T = TypeVar("T")

LARGEST = (1 << 53) - 1
"""Largest legal number: JSON of any program keeps it."""
LARGEST_FILE = 256 << 20
"""Bytes of a file that is decoded as a whole."""
_PIECE = 1 << 20
"""Bytes of a read: Python allocates what a read could return."""
_SHOWN = 80

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 31)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 31)]
Finite: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Cost: TypeAlias = Annotated[float, Meta(gt=0, le=LARGEST)]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, lt=1)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class NotValid(msgspec.ValidationError):
    """A value breaks a rule; the message has both, and the place."""


def shown(value: object) -> str:
    """Return a value for a message, cut where it has digits by the thousand."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_number(value: object) -> None:
    """Refuse a number of an option that is not finite, negative or absurd. Raises NotValid."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not 0 <= value <= LARGEST:  # which NaN is not, either
        raise NotValid(f"{shown(value)} is not a number from 0 to {LARGEST}")


def read_file(path: Path, *, what: str, hint: str) -> bytes:
    """Return the bytes of a file of a sensible size. Raises UsageError."""
    try:
        return read_bounded(path, what=what, hint=hint)
    except OSError as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: {error.strerror}", hint) from error


def read_bounded(path: Path, *, what: str, hint: str) -> bytes:
    """Return the bytes of a file. Raises UsageError if it is too large, OSError as it is."""
    from kvproof.harness.opening import opened  # a start counts its modules

    with opened(path) as file:
        pieces = islice(iter(partial(file.read, _PIECE), b""), LARGEST_FILE // _PIECE + 1)
        data = b"".join(pieces)
    if len(data) > LARGEST_FILE:
        size = LARGEST_FILE >> 20
        raise UsageError(f"{what} {str(path)!r} is larger than {size} MiB", hint)
    return data


def parse_json(data: bytes) -> Any:
    """Decode JSON strictly. Raises NotValid."""
    try:
        return strict_json.loads(data)
    except strict_json.NotStrict as error:
        raise NotValid(str(error)) from None


def parse_toml(data: bytes) -> dict[str, Any]:
    """Decode TOML, in which all numbers are finite. Raises NotValid with the place."""
    try:
        found = tomllib.loads(data.decode())
    except RecursionError:
        raise NotValid("it is not TOML of a record: it is nested too deep") from None
    except ValueError as error:  # of TOML, UTF-8, or too many digits
        raise NotValid(f"it is not TOML: {error}") from None
    check_finite(found)
    return found


def check_finite(value: object, place: str = "$") -> None:
    """Refuse NaN, infinities and absurd numbers anywhere in a tree. Raises NotValid."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            check_finite(each, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            check_finite(each, f"{place}[{at}]")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:  # NaN is not, either
        rule = f"a finite number, at most {LARGEST}"
        raise NotValid(f"{shown(value)} is not {rule} - at `{place}`")


def decode(data: bytes, kind: type[T]) -> T:
    """Decode strict JSON into a record of a constrained type. Raises NotValid, ValidationError."""
    return msgspec.convert(parse_json(data), kind)
