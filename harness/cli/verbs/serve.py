"""`kvproof serve`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.serve import ServeOptions


def serve(options: Annotated[ServeOptions, Parameter(name="*")]) -> None:
    """Serve a model to OpenAI clients, until Ctrl-C or SIGTERM."""
    from kvproof.harness.cli.actions.serving import serve as action

    action.serve(options)
