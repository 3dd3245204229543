"""One page for each engine, generated from its adapter's profile.

`python -m kvproof.suites.tests.documents.target_pages docs/targets vllm==0.33.0 ...` starts each
target, asks for its profile, and writes `<engine>-<version>.md`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import kvproof.harness.adapters
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.provenance import ACTIONS, by_adapter
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.conformance.provenance import narrowing
from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels

_MEANING = {
    "block_sizes": "block sizes, tokens",
    "max_kernel_ratio": "kernel blocks in a block, at most",
    "adapters": "adapters and their versions separate",
    "salts": "salts separate",
    "keys": "callers' own keys separate",
    "embeddings": "prompts given as embeddings",
    "spans": "media spans",
    "span_identity": "what of a span is part of a block's identity",
    "span_clamp": "hits and steps never end inside a span",
    "no_read": "requests that may not read",
    "no_store": "requests that may not store",
    "evict": "eviction on request",
    "lookup": "look-up without admission",
    "batch": "padded tables of a batch",
    "holders": "reference counts",
    "state": "digest of the state",
    "statistics": "hit statistics",
    "sharing": "blocks become reusable",
    "duplicates": "equal blocks",
    "reset": "reset",
    "eviction_order": "eviction order",
    "index": "index",
    "groups": "kinds of groups",
    "maximal": "hits are the longest that the rules allow",
}
"""Field of the profile -> its meaning, in the order of the page."""


def page(handle: Handle) -> str:
    """Return the page of one target."""
    profile = handle.profile
    parts = (
        _head(profile),
        _claims(profile),
        _why_not(profile),
        _done_by_adapter(profile),
        _narrowed(profile),
        _failures(profile),
        _judged(handle),
    )
    return "\n".join(line for part in parts for line in (*part, "")).rstrip() + "\n"


def _head(profile: Profile) -> Iterator[str]:
    spec = f"{profile.engine}=={profile.version}"
    yield f"# {spec}"
    yield ""
    module = "kvproof.suites.tests.documents.target_pages"
    yield f"Written by `python -m {module}`, from the adapter's profile."
    yield ""
    yield from ("```", f"kvproof targets install {spec}", f"kvproof run --target {spec}", "```")
    yield ""
    yield "## How it is driven"
    yield ""
    yield _docstring(profile.engine)


def _docstring(engine: str) -> str:
    folder = Path(next(iter(kvproof.harness.adapters.__path__)))
    source = folder / engine.replace("-", "_") / "target.py"
    module = ast.parse(source.read_text(encoding="utf-8"))
    paragraphs = (ast.get_docstring(module) or "").split("\n\n")
    return "\n\n".join(text for text in paragraphs if not text.startswith("Imported in"))


def _claims(profile: Profile) -> Iterator[str]:
    yield "## What it claims"
    yield ""
    yield "| capability | value |"
    yield "| --- | --- |"
    if not profile.blocks:
        yield "| manages blocks of an engine | no |"
        yield f"| offers its own implementation of the parts | {', '.join(profile.parts)} |"
        return
    for name, words in _MEANING.items():
        yield f"| {words} | {_value(getattr(profile, name))} |"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value and isinstance(value, tuple) and isinstance(value[0], tuple):
        return "; ".join(" + ".join(each) for each in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).replace("_", " ")


def _why_not(profile: Profile) -> Iterator[str]:
    yield "## What is not judged, and why"
    yield ""
    yield "| capability | reason |"
    yield "| --- | --- |"
    order = list(profile.flat())
    known = sorted(
        profile.unsupported,
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    for name in known:
        yield f"| {name.replace('_', ' ')} | {profile.unsupported[name]} |"


def _done_by_adapter(profile: Profile) -> Iterator[str]:
    yield "## What the adapter does in the engine's place"
    yield ""
    theirs = by_adapter(profile.provenance)
    if not theirs:
        yield "Nothing."
        return
    yield "Properties that judge nothing else are unsupported."
    yield ""
    yield "| action | how |"
    yield "| --- | --- |"
    for name, how in theirs.items():
        yield f"| {ACTIONS[name]} | {how} |"


def _narrowed(profile: Profile) -> Iterator[str]:
    yield "## Which configurations are left out, and why"
    yield ""
    fields = sorted({*profile.narrowed, *narrowing(profile)})
    if not fields:
        yield "None."
        return
    yield "| field | value | reason |"
    yield "| --- | --- | --- |"
    for name in fields:
        reason = profile.narrowed.get(name, "no reason is given")
        value = _value(getattr(profile, name))
        yield f"| {name.replace('_', ' ')} | {value} | {reason} |"


def _failures(profile: Profile) -> Iterator[str]:
    found = expected_failures.load(profile.engine, profile.version, names=levels.property_names())
    yield "## Expected failures"
    yield ""
    if not found:
        yield "None."
    for each in found:
        yield f"- `{each.property}`: {each.reason} ([upstream]({each.upstream}))"


def _judged(handle: Handle) -> Iterator[str]:
    yield "## Properties that judge it"
    for suite in levels.suites(handle, "full"):
        if suite.judged:
            yield ""
            yield _judging(suite)


def _judging(suite: Suite) -> str:
    names = ", ".join(f"`{prop.name}`" for prop in suite.judged)
    return names if suite.name == CACHE else f"Part `{suite.name}`: {names}"


def main(arguments: Sequence[str]) -> None:
    """Write the pages of the named targets to the folder."""
    folder, *specs = arguments
    Path(folder).mkdir(parents=True, exist_ok=True)
    for spec in specs:
        with open_handle(spec) as handle:
            engine, version = handle.profile.engine, handle.profile.version
            (Path(folder) / f"{engine}-{version}.md").write_text(page(handle), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
