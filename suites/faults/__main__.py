"""Run a script, or a command of kvproof, with a fault planted.

`python -m kvproof.suites.faults NAME script.py` or `... NAME run --target reference`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

from kvproof.harness.errors import Exit, UsageError
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.planting import Unfit, plant

USAGE = "python -m kvproof.suites.faults NAME SCRIPT.py|COMMAND [ARGUMENTS]"


def main(arguments: Sequence[str]) -> None:
    """Plant the fault that comes first, then run the rest."""
    if len(arguments) < 2:
        _refuse("a fault and something to run are needed", f"usage: {USAGE}", Exit.USAGE)
    name, first, *rest = arguments
    try:
        plant(find(name))
    except UsageError as error:
        _refuse(str(error), error.hint, Exit.USAGE)
    except Unfit as error:
        _refuse(str(error), "correct it in suites/faults", Exit.HARNESS)
    if first.endswith(".py"):
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")
        return
    (command,) = entry_points(group="console_scripts", name="kvproof")
    command.load()([first, *rest])


def _refuse(message: str, hint: str, code: Exit) -> NoReturn:
    sys.stderr.write(f"kvproof faults: {message}\n  {hint}\n")
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
