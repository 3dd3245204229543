"""`kvproof.toml`: checked defaults of runs and of the gate.

Defaults < file < command line; the command line replaces fields of the frozen settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from kvproof.harness.decoding import (
    Finite,
    Fraction,
    Name,
    NotValid,
    Positive,
    parse_toml,
    read_file,
    shown,
)
from kvproof.harness.errors import UsageError

DEFAULT_FILE = "kvproof.toml"
"""Read from the working directory if no other file is named."""

BudgetName: TypeAlias = Literal["pr", "nightly", "debug"]
LevelName: TypeAlias = Literal["core", "full"]
CaseName: TypeAlias = Literal[
    "no_eviction",
    "eviction",
    "python-lists",
    "index",
    "index-eviction",
    "match",
    "tiers",
    "scheduler",
    "growth",
]
"""A case of the bench."""
Drawing: TypeAlias = Literal["hypothesis", "seeds"]
"""Source of the histories of `fuzz`."""
Metric: TypeAlias = Literal[
    "tokens_per_second",
    "ratio",
    "hit_rate",
    "p50_us",
    "p99_us",
    "bytes_per_block",
    "index_bytes_per_block",
]
"""A figure of a bench summary; `ratio` is tokens per second over the peer's."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class RunSettings(_Table, frozen=True, kw_only=True):
    """`[run]`: for `run`, `fuzz` and `gate`."""

    targets: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)] = ("reference",)
    budget: BudgetName = "pr"
    known_failures: str = ""
    """File of `kvproof xfail`, relative to the settings file; empty: none."""
    connector: str = ""
    """A connector of vLLM of your own, `package.module:Class`; empty: none."""
    connector_options: dict[str, Any] = {}
    """Its settings."""


class Limit(_Table, frozen=True, kw_only=True):
    """`[[gate.threshold]]`: one figure of the bench must stay within `min` and `max`."""

    target: Name
    """As in the run, or only its engine: `vllm` means every version of vLLM."""
    case: CaseName = "no_eviction"
    block_size: Positive
    """Tokens."""
    metric: Metric
    peer: str = ""
    """For `ratio`: only against this target, named like `target`; empty: whichever it is."""
    min: Finite | None = None
    max: Finite | None = None


class GateSettings(_Table, frozen=True, kw_only=True):
    """`[gate]`: additions of the gate to a run, and its tolerances."""

    level: LevelName = "core"
    """Suites that judge the reference; other targets are judged at level core."""
    bench: bool = True
    requests: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 400
    """Requests of the generated bench workload."""
    sweep: bool = True
    """Check the kernels, if torch and Triton are installed."""
    baseline: Name = "kvproof-baseline.json"
    """Figures of an earlier gate on this hardware, relative to the settings file."""
    max_regression: Fraction = 0.25
    """Largest loss against the baseline that counts as none, as a fraction of the cost."""
    threshold: tuple[Limit, ...] = ()


class Thresholds(_Table, frozen=True, kw_only=True):
    """`[compare.threshold]`: the largest change of a cost that counts as none, as a fraction."""

    cpu_per_token: Fraction = 0.05
    p50: Fraction = 0.1
    p99: Fraction = 0.25
    growth: Fraction = 0.1
    kernel: Fraction = 0.05
    bytes_per_block: Fraction = 0.02
    misses: Fraction = 0.01
    wrong_answers: Fraction = 0.1
    """This one and the next two: for changes of level in `history`."""
    recomputed_tokens: Fraction = 0.01
    largest_difference: Fraction = 0.5


class CompareSettings(_Table, frozen=True, kw_only=True):
    """`[compare]`: when `compare` calls two runs different."""

    alpha: Fraction = 0.05
    """Probability that a table of equal runs has any row called slower or faster."""
    baselines: str = ".kvproof/baselines"
    """Folder of `kvproof baseline save`, relative to the settings file."""
    threshold: Thresholds = Thresholds()


class CampaignSettings(_Table, frozen=True, kw_only=True):
    """`[campaign]`: settings shared by the workers of `fuzz`."""

    database: Name = ".kvproof/examples"
    """Failing examples: a directory, or redis://host:6379/0 for several machines."""
    artifact: Annotated[str, msgspec.Meta(pattern=r"^([\w.-]+/[\w.-]+)?$")] = ""
    """owner/repository whose CI stores examples as an artifact: read, never written."""
    histories: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 200
    """Histories of a work unit: so few that a lost worker costs little."""


class Settings(_Table, frozen=True, kw_only=True):
    """The whole file."""

    run: RunSettings = RunSettings()
    gate: GateSettings = GateSettings()
    compare: CompareSettings = CompareSettings()
    campaign: CampaignSettings = CampaignSettings()


def load_settings(path: Path | None = None) -> Settings:
    """Read `path`; None: `kvproof.toml` of the working directory, or defaults without one.

    Raises UsageError with the file, the key and its value for any undocumented content.
    """
    if path is None:
        path = Path(DEFAULT_FILE)
        if not os.path.lexists(path):  # a link to nothing is no absence
            return Settings()
    data = _parsed(path)
    _refuse_unknown(path, data, Settings, ())
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise _wrong_value(path, data, str(error)) from error
    _check_limits(path, settings.gate)
    return _beside(path, settings)


def _parsed(path: Path) -> dict[str, Any]:
    data = read_file(path, what="settings", hint="give a file with --config")
    try:
        return parse_toml(data)
    except NotValid as error:
        raise UsageError(f"{str(path)!r}: {error}", "correct that line") from error


def _refuse_unknown(path: Path, data: object, kind: object, where: tuple[str, ...]) -> None:
    """Walk tables and arrays of tables. Raises UsageError for the first unknown key."""
    if get_origin(kind) is tuple and isinstance(data, list):
        for item in data:
            _refuse_unknown(path, item, get_args(kind)[0], where)
    if not (isinstance(kind, type) and issubclass(kind, _Table) and isinstance(data, Mapping)):
        return
    hints = get_type_hints(kind)
    for key, value in data.items():
        if key not in hints:
            raise UsageError(
                f"{str(path)!r} has the unknown key {'.'.join((*where, key))!r}",
                _guess(key, where, list(hints)),
            )
        _refuse_unknown(path, value, hints[key], (*where, key))


def _guess(key: str, where: tuple[str, ...], known: Sequence[str]) -> str:
    close = get_close_matches(key, known, 1)
    if close:
        return f"did you mean {'.'.join((*where, close[0]))!r}?"
    return f"known here: {', '.join(known)}"


_CHOICES = {
    "budget": get_args(BudgetName),
    "case": get_args(CaseName),
    "level": get_args(LevelName),
    "metric": get_args(Metric),
}


def _wrong_value(path: Path, data: dict[str, Any], message: str) -> UsageError:
    """Convert msgspec's `... - at `$.run.budget`` to the key, its value and the allowed values."""
    problem, _, place = message.partition(" - at `$.")
    steps = re.findall(r"\w+|\[\d+\]", place.rstrip("`"))
    value: Any = data
    for step in steps:
        value = value[int(step[1:-1])] if step.startswith("[") else value[step]
    key = ".".join(steps).replace(".[", "[")
    name = steps[-1] if steps else ""
    choices = _CHOICES.get(name, ())
    if not choices or not isinstance(value, str):
        return UsageError(f"{str(path)!r}: {key} = {shown(value)}: {problem}", "correct that value")
    return UsageError(
        f"{str(path)!r}: {key} = {shown(value)} is not a {name}", _guess(value, (), choices)
    )


def _check_limits(path: Path, gate: GateSettings) -> None:
    for index, limit in enumerate(gate.threshold):
        where = f"{str(path)!r}: gate.threshold[{index}] ({limit.target}, {limit.metric})"
        if limit.min is not None and limit.max is not None and limit.min > limit.max:
            raise UsageError(
                f"{where} has min {limit.min:g} above max {limit.max:g}", "nothing is within both"
            )
        if limit.min is None and limit.max is None:
            raise UsageError(
                f"{where} has no limit",
                "give it min = ... or max = ...",
            )


def _beside(path: Path, settings: Settings) -> Settings:
    """Baselines and known failures lie relative to the file that names them."""
    known = settings.run.known_failures
    baseline = str(path.parent / settings.gate.baseline)
    baselines = str(path.parent / settings.compare.baselines)
    return msgspec.structs.replace(
        settings,
        run=msgspec.structs.replace(
            settings.run, known_failures=str(path.parent / known) if known else ""
        ),
        gate=msgspec.structs.replace(settings.gate, baseline=baseline),
        compare=msgspec.structs.replace(settings.compare, baselines=baselines),
    )
