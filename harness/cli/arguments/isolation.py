"""Options of the verbs that judge targets: where a user's own target or engine runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvproof.harness.isolation.registry import OwnTargets


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

    def own_targets(self, known_failures: str = "") -> OwnTargets:
        """Return the options as `open_handle` takes them. Raises UsageError.

        `known_failures` is the file that the settings name.
        """
        from kvproof.harness.cli.duration import seconds
        from kvproof.harness.cli.sizes import size_of
        from kvproof.harness.isolation.registry import OwnTargets

        start = seconds(self.worker_start)
        known = str(self.known_failures or known_failures)
        return OwnTargets(self.in_process, size_of(self.worker_memory), self.python, start, known)
