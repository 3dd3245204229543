"""`kvproof targets` and `kvproof new-target`."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="targets", help="List, install, remove and show engines.")


@app.command(name="list")
def list_() -> None:
    """List the names for --target, and the installed engines."""
    from kvproof.harness.cli.actions import targets

    targets.print_targets()


@app.command
def install(spec: str, /, *, wheel: Path | None = None, patch: Path | None = None) -> None:
    """Build the environment of an engine, for example vllm==0.33.0; seconds if it exists.

    A version without a lock file gets the packages of the nearest one; then the adapter judges
    whether it fits.

    Parameters
    ----------
    spec
        Engine and version; with --wheel the engine alone.
    wheel
        A build of the engine of your own, in place of the one of the package index.
    patch
        A unified diff against the installed files of a release. The build gets a name of its own,
        as in vllm==0.33.0+mine.

    """
    from kvproof.harness.cli.actions import targets

    targets.install(spec, wheel=wheel, patch=patch)


@app.command
def check(spec: str, /, *, python: str = "", json: bool = False) -> int:
    """Compare an engine with its adapter: which call changed and how; 2 if one is in the way.

    Parameters
    ----------
    spec
        Engine, with its version unless only one is there.
    python
        Interpreter or virtual environment of your own in which the engine is installed.
    json
        Print a list of objects instead of a table.

    """
    from kvproof.harness.cli.actions import targets

    return targets.check(spec, python=python, as_json=json)


@app.command
def remove(spec: str, /) -> None:
    """Delete the environment of an engine.

    Parameters
    ----------
    spec
        Engine and version.

    """
    from kvproof.harness.cli.actions import targets

    targets.remove(spec)


@app.command
def show(spec: str, /) -> None:
    """Show a target's capabilities, its properties, and the reasons for the missing ones.

    Parameters
    ----------
    spec
        As for --target.

    """
    from kvproof.harness.isolation.registry import check_names

    check_names([spec])
    from kvproof.harness.cli.actions import conformance  # dear: not for a mistyped target

    conformance.show_target(spec)


def new_target(folder: Path, /) -> None:
    """Write a target to start from: one file, which runs and fails usefully.

    It allocates blocks and reuses none. Parts to replace by calls into your engine are marked.

    Parameters
    ----------
    folder
        Folder of kvproof_target.py, made if it is missing; an existing file is never replaced.

    """
    from kvproof.harness.cli.actions import new_target as action

    action.new_target(folder)
