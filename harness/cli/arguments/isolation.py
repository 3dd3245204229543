"""Options of the verbs that judge targets: where a user's own target or engine runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from kvproof.harness.isolation.registry import OwnTargets
    from kvproof.harness.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class IsolationArguments:
    """Options of the verb; each attribute docstring is the help text."""

    in_process: bool = False
    """Run your own target in this process, for a debugger: a crash or hang of it is then one of
    kvproof."""
    worker_memory: str = "2GiB"
    """Memory that the worker of your own target may take beyond its imports; 0: no limit."""

    worker_start: str = "30s"
    """Time in which your own target is imported, made and closed for the first time."""

    python: str = ""
    """Interpreter or virtual environment of your own whose engine is judged, for example that of
    your branch: kvproof installs nothing there. Its default is KVPROOF_PYTHON."""

    known_failures: Path | None = None
    """File with the known failures of your engine, kept in its repository: kvproof xfail writes
    it. A failure in it is no failure of the run, and one that is gone is. By default
    run.known_failures of the settings file."""

    connector: str = ""
    """Your own connector of vLLM, package.module:Class, derived from KVConnectorBase_V1:
    vllm-engine runs with it. By default run.connector of the settings file."""

    connector_option: Annotated[list[str], Parameter(negative="")] = field(default_factory=list)
    """A setting of the connector, key=value; repeatable. A field of vLLM's KVTransferConfig
    (kv_role, kv_load_failure_policy), or else a key of its extra config. {folder} in it is an empty
    folder of each engine. In the settings file: [run.connector_options]."""

    def connectors(self, settings: RunSettings) -> dict[str, str]:
        """Return the connector that is given, and that of the settings, for `chosen_targets`."""
        return {"connector": self.connector, "usual_connector": settings.connector}

    def own_targets(self, settings: RunSettings | None = None) -> OwnTargets:
        """Return the options as `open_handle` takes them. Raises UsageError.

        `settings` are the defaults.
        """
        from kvproof.harness.cli.duration import seconds
        from kvproof.harness.cli.sizes import size_of
        from kvproof.harness.isolation.registry import OwnTargets

        start = seconds(self.worker_start)
        known = str(self.known_failures or (settings.known_failures if settings else ""))
        memory, options = size_of(self.worker_memory), self._options(settings)
        return OwnTargets(self.in_process, memory, self.python, start, known, options)

    def _options(self, settings: RunSettings | None) -> tuple[str, ...]:
        import msgspec

        from kvproof.harness.isolation.connected import options_of

        options_of(self.connector_option)
        given = settings.connector_options if settings else {}
        return (
            *(f"{key}={msgspec.json.encode(each).decode()}" for key, each in given.items()),
            *self.connector_option,
        )
