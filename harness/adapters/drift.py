"""Signature drift between an installed engine and its adapter. Engine environment only."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from operator import attrgetter


def signature_drift(
    names: object, signatures: Mapping[str, str], accepted: Mapping[str, str]
) -> Iterator[str]:
    """Compare the callables of `names` (dotted path -> object) with their expected parameters.

    Args:
        names: Imported names of the engine.
        signatures: Callable -> all of its parameters, in order.
        accepted: Callable -> the parameters that the adapter passes.

    """
    for name, expected in signatures.items():
        actual = " ".join(_parameters(names, name))
        if actual != expected:
            yield f"{name}({actual}), expected ({expected})"
    for name, expected in accepted.items():
        if missing := set(expected.split()) - set(_parameters(names, name)):
            yield f"{name} does not accept {' '.join(sorted(missing))}"


def attribute_drift(owner: object, attributes: Mapping[str, str]) -> Iterator[str]:
    """Name the attributes (`where` -> names) that objects of the engine do not have."""
    for where, names in attributes.items():
        for name in names.split():
            if not _has(owner, f"{where}.{name}"):
                yield f"{where} has no attribute {name}"


def _parameters(names: object, path: str) -> list[str]:
    return list(inspect.signature(attrgetter(path)(names)).parameters)


def _has(owner: object, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
