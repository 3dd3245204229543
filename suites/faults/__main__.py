"""Run a script, or a command of kvproof, with a fault planted.

`python -m kvproof.suites.faults NAME script.py` or `... NAME run --target reference`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from kvproof.harness.errors import Exit, UsageError
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.planting import plant


def main(arguments: Sequence[str]) -> None:
    """Plant the fault named first, then run the rest."""
    try:
        name, first, *rest = arguments
        plant(find(name))
    except UsageError as error:
        sys.exit(f"kvproof faults: {error}\n  {error.hint}")
    except ValueError as error:
        usage = "python -m kvproof.suites.faults NAME SCRIPT.py|COMMAND [ARGUMENTS]"
        sys.stderr.write(f"kvproof faults: {error}\n  usage: {usage}\n")
        sys.exit(Exit.USAGE)
    if first.endswith(".py"):
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")
        return
    from kvproof.harness.cli import main as command  # after planting: it imports everything

    command([first, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
