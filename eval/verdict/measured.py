"""The subject of a run: its model, weights, engines and requests."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.records import Conditions, Record, ServerRecord, asked_as
from kvproof.reports.values.text import plural

_UNKNOWN = "not reported"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a configuration, as it was last ready."""

    configuration: str
    model: str
    """Name in requests."""
    engine: str
    version: str
    prefix_cache: bool
    settings: dict[str, str | int | float | bool]
    command: tuple[str, ...]
    """Empty for a running server."""
    url: str

    @property
    def started(self) -> str:
        """Command with its arguments, or the address of a running server."""
        return shlex.join(self.command) if self.command else self.url


def measured(config: EvalConfig, records: Iterable[Record]) -> tuple[Measured, ...]:
    """Return the configurations' servers; one that was never ready is left out."""
    last = {each.configuration: each for each in records if isinstance(each, ServerRecord)}
    return tuple(
        Measured(
            configuration=one.name,
            model=asked_as(config.model, server),
            engine=server.engine,
            version=server.version,
            prefix_cache=one.prefix_cache,
            settings=one.settings,
            command=server.command,
            url=server.url,
        )
        for one in config.configuration
        if (server := last.get(one.name))
    )


def renamed(servers: Sequence[Measured], names: Mapping[str, str]) -> list[Measured]:
    """Give configurations other names."""
    return [replace(each, configuration=names[each.configuration]) for each in servers]


def server_rows(servers: Sequence[Measured]) -> tuple[tuple[str, ...], ...]:
    """Configuration, engine, version, prefix cache, model, and how it was started."""
    return tuple(
        (
            each.configuration,
            each.engine or _UNKNOWN,
            each.version or _UNKNOWN,
            "on" if each.prefix_cache else "off",
            each.model or _UNKNOWN,
            each.started,
        )
        for each in servers
    )


def condition_rows(asked: Conditions) -> tuple[tuple[str, str], ...]:
    """Name and value of everything that two comparable runs share."""
    weights = asked.weights or "not on this machine, so that no digest is known"
    cut = "" if asked.truncation == "none" else f"; {asked.truncation}"
    size = plural(asked.data.samples, "sample")
    return (
        ("model", asked.model or "as each server names it"),
        ("weights", weights),
        ("data", f"{asked.data.name}, {size}, SHA-256 {asked.data.sha256}"),
        ("shared pass", asked.shared),
        ("prompt", f"{asked.prompt}, SHA-256 {asked.prompt_sha256}{cut}"),
        ("sampling", _sampling(asked)),
        ("order", f"{', '.join(asked.phases)}; {asked.order}; {asked.concurrency} at once; "
                  f"{plural(asked.repeats, 'repeat')}"),
        ("extraction", asked.extraction),
        ("client", asked.runner),
    )  # fmt: skip


def _sampling(asked: Conditions) -> str:
    more = [f"{name} {value}" for name, value in asked.sampling.items()]
    thought = [f"{asked.thought_tokens} for the first answer"] if asked.thought_tokens else []
    most = f"at most {asked.max_tokens} tokens"
    return ", ".join([f"temperature {asked.temperature:g}", most, *thought, *more])
