"""`kvproof targets`."""

from __future__ import annotations

from cyclopts import App

app = App(name="targets", help="List, install, remove and show engines.")


@app.command(name="list")
def list_() -> None:
    """List the names for --target, and the installed engines."""
    from kvproof.harness.cli.actions import targets

    targets.print_targets()


@app.command
def install(spec: str, /) -> None:
    """Build the environment of an engine, for example vllm==0.33.0; seconds if it exists.

    Parameters
    ----------
    spec
        Engine and version.

    """
    from kvproof.harness.cli.actions import targets

    targets.install(spec)


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
    from kvproof.harness.cli.actions import conformance

    conformance.show_target(spec)
