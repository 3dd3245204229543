"""The command line: thin modules on top of everything, imported by nobody.

In: arguments and settings. Out: exit codes, run directories, reports. Imports everything.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvproof.harness.errors import Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with the codes of `Exit`."""
    try:
        from kvproof.harness.cli.app import main as run  # takes long enough for a Ctrl-C
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    run(arguments)


__all__ = ["main"]
