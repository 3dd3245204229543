"""Signature drift between an installed engine and its adapter. Engine environment only.

A release that an adapter was written for must have exactly the parameters of its tables. Any other
release is compared with all of them: a callable is as expected if it is as in one of them, and
tolerated if the adapter's own call is still a valid one.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from kvproof.harness.contract.differences import Difference


def found_drift(
    installed: str,
    known: Collection[str],
    load: Callable[[], Any],
    compare: Callable[[Any], Iterable[Difference]],
    *,
    exact: bool = False,
) -> tuple[Difference, ...]:
    """Compare an installed engine with its adapter; of another release too, unless `exact`.

    Args:
        installed: Its release.
        known: Releases that the adapter was written for.
        load: Imports the names that the adapter uses.
        compare: Finds the differences of what `load` returned.
        exact: Other releases are not compared: the adapter needs one of the known ones.

    """
    if exact and installed not in known:
        listed = " and ".join(filter(None, (", ".join([*known][:-1]), [*known][-1])))
        text = f"version {installed} is installed, the adapter was written for {listed}"
        return (Difference("release", installed, listed, text),)
    try:
        return tuple(compare(load()))
    except ModuleNotFoundError as error:
        return (_without_module(error),)
    except ImportError as error:
        return (Difference("import", error.name or "", _imported(error), str(error)),)
    except AttributeError as error:
        return (Difference("import", _of(error), error.name or "", str(error)),)
    except Exception as error:
        if installed in known:
            raise
        text = f"{type(error).__name__}: {error}"
        return (
            Difference("import", "import, or making a small cache manager", "no exception", text),
        )


def _of(error: AttributeError) -> str:
    return getattr(error.obj, "__name__", type(error.obj).__name__)


def _imported(error: ImportError) -> str:
    found = re.search(r"cannot import name '([^']*)'", str(error))
    return found[1] if found else ""


def _without_module(error: ModuleNotFoundError) -> Difference:
    name = error.name or ""
    package = name.partition(".")[0]
    if package in sys.modules:
        return Difference("import", name, "the module", str(error))
    return Difference("package", package, "the package", str(error))


def refuse(engine: str, differences: Sequence[Difference]) -> None:
    """Raise RuntimeError if there are differences that the adapter cannot live with."""
    if texts := [str(each) for each in differences if each.blocks]:
        raise RuntimeError(f"{engine} is not what the adapter expects: {'; '.join(texts)}")


def signature_drift(
    names: object, signatures: Mapping[str, str], accepted: Mapping[str, str]
) -> Iterator[Difference]:
    """Compare the callables of `names` (dotted path -> object) with their expected parameters.

    Args:
        names: Imported names of the engine.
        signatures: Callable -> all of its parameters, in order.
        accepted: Callable -> the parameters that the adapter passes.

    """
    for name, expected in signatures.items():
        actual = parameters(names, name)
        if actual is None:
            yield gone(name)
        elif actual != expected:
            yield Difference("call", name, expected, actual)
    yield from accepted_drift(names, accepted)


def drift_of_calls(
    names: object,
    *,
    known: bool,
    signatures: Mapping[str, str],
    accepted: Mapping[str, str],
    calls: Mapping[str, str] | None = None,
) -> tuple[Difference, ...]:
    """Compare the callables of a `known` release exactly, and those of another one by its calls."""
    if known:
        return tuple(signature_drift(names, signatures, accepted))
    forms = {name: (expected,) for name, expected in signatures.items()}
    return (*call_drift(names, forms, calls or {}), *accepted_drift(names, accepted))


def accepted_drift(names: object, accepted: Mapping[str, str]) -> Iterator[Difference]:
    """Compare callables with the parameters that the adapter passes, by keyword or in order."""
    for name, expected in accepted.items():
        actual = parameters(names, name)
        if actual is None:
            yield gone(name)
        elif missing := set(expected.split()) - set(actual.split()):
            yield Difference("call", name, " ".join(sorted(missing)))


def call_drift(
    names: object, forms: Mapping[str, Sequence[str | None]], calls: Mapping[str, str]
) -> Iterator[Difference]:
    """Compare the callables of a release that is not known.

    Args:
        names: Imported names of the engine.
        forms: Callable -> its parameters in known releases, the nearest one first; None: absent.
        calls: Callable -> the adapter's call, `self a b c= d?`: by position, by keyword, and by
            keyword where it is accepted. One that is not listed is called with all parameters of
            the nearest release.

    """
    for name, known in forms.items():
        actual = parameters(names, name)
        if actual in known:
            continue
        expected = next(each for each in known if each is not None)
        if actual is None:
            yield gone(name)
            continue
        fits = _binds(attrgetter(name)(names), calls.get(name, expected))
        yield Difference("call", name, expected, actual, not fits)


def gone(name: str) -> Difference:
    """Return the difference of a callable that is not there."""
    owner, _, last = name.rpartition(".")
    return Difference("attribute", owner or "the engine", last)


def fewest(found: Iterable[Iterable[Difference]]) -> tuple[Difference, ...]:
    """Return the fewest differences from one of several forms, the first of equals."""
    return min(map(tuple, found), key=len)


def _binds(function: Callable[..., object], call: str) -> bool:
    """Whether a call is valid: the same names by position, and a default for all that is new."""
    found = inspect.signature(function).parameters
    given = call.split()
    position = [name for name in given if name[-1] not in "=?"]
    keywords = {name[:-1] for name in given if name[-1] == "="}
    passed = keywords | {name[:-1] for name in given if name[-1] == "?"}
    rest = [each for each in list(found.values())[len(position) :] if each.name not in passed]
    return (
        list(found)[: len(position)] == position
        and keywords <= set(found)
        and all(each.default is not each.empty or each.kind in _VARIABLE for each in rest)
    )


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def attribute_drift(owner: object, attributes: Mapping[str, str]) -> Iterator[Difference]:
    """Name the attributes (`where` -> names) that objects of the engine do not have."""
    for where, names in attributes.items():
        for name in names.split():
            if not _has(owner, f"{where}.{name}"):
                yield Difference("attribute", where, name)


def parameters(names: object, path: str) -> str | None:
    """Return the parameters of a callable, in order; None if it is not there."""
    try:
        found = attrgetter(path)(names)
    except AttributeError:
        return None
    return " ".join(inspect.signature(found).parameters)


def _has(owner: object, path: str) -> bool:
    try:
        attrgetter(path)(owner)
    except AttributeError:
        return False
    return True
