"""Signature drift between an installed engine and its adapter. Engine environment only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any


def found_drift(
    installed: str,
    known: Collection[str],
    load: Callable[[], Any],
    compare: Callable[[Any], Iterable[str]],
) -> tuple[str, ...]:
    """Compare an installed engine with its adapter.

    Args:
        installed: Its release.
        known: Releases that the adapter was written for.
        load: Imports the names that the adapter uses.
        compare: Names the differences of what `load` returned.

    """
    if installed not in known:
        listed = " and ".join(filter(None, (", ".join([*known][:-1]), [*known][-1])))
        return (f"version {installed} is installed, the adapter was written for {listed}",)
    try:
        return tuple(compare(load()))
    except (ImportError, AttributeError) as error:
        return (str(error),)


def refuse(engine: str, differences: Sequence[str]) -> None:
    """Raise RuntimeError if there are differences."""
    if differences:
        raise RuntimeError(f"{engine} is not what the adapter expects: {'; '.join(differences)}")


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
