"""The command line, on top of every other package; nothing but tests and tools imports it.

In: the words of a command. Out: an exit code of `Exit`. `app` finds the verb, `verbs` have its
options and help, `arguments` the long sets of options, `actions` its work; `runs` records it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from kvproof.harness.errors import Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with the codes of `Exit`."""
    # Hypothesis would import what other packages offer it, and end at a damaged entry point.
    os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"
    try:
        if list(sys.argv[1:] if arguments is None else arguments) == ["--version"]:
            _print_version()
            return
        from kvproof.harness.cli.app import main as run  # takes long enough for a Ctrl-C
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except MemoryError:
        _no_memory()
    try:
        run(arguments)
    except MemoryError:  # not even enough to say so in colours
        _no_memory()


def _no_memory() -> NoReturn:
    sys.stderr.write("kvproof: there is not enough memory\n  raise its limit (ulimit -v)\n")
    sys.exit(Exit.USAGE)


def _print_version() -> None:
    """Without the application, which takes four times as long to load."""
    from importlib.metadata import version

    sys.stdout.write(f"{version('kvproof')}\n")


__all__ = ["main"]
