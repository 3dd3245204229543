"""Run the lines of the Containerfile in a new folder, where there is no container runtime.

`python -m kvproof.suites.tests.lab.containerfile [--arg NAME=VALUE]... [ENGINE]...` copies the
tracked files, sets ENV and ARG, and runs each RUN line with `sh`, those of the engines named (all
by default). Not run: FROM, whose place this machine takes, and ENTRYPOINT.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.scratch import scratch

ROOT = Path(__file__).parents[3]
FILE = ROOT / "Containerfile"
INSTALL = re.compile(r"targets install (?P<engine>[\w-]+)==(?P<version>[\w.]+)$")


class Line(NamedTuple):
    """One instruction."""

    verb: str
    rest: str


def lines(text: str) -> Iterator[Line]:
    """Yield the instructions of a file; none goes over several lines."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            verb, _, rest = line.partition(" ")
            yield Line(verb, rest)


def carry_out(found: Sequence[Line], folder: Path, args: Sequence[str], engines: list[str]) -> int:
    """Run the instructions; `folder` stands for the root. Returns the first code that is not 0."""
    values, place = dict(os.environ), folder
    given = dict(each.split("=", 1) for each in args)
    for verb, rest in found:
        name, _, value = rest.partition("=")
        if verb == "ARG":
            values[name] = given.get(name, value)
        elif verb == "ENV":
            values[name] = value.replace("/kvproof", str(folder / "kvproof"))
        elif verb == "WORKDIR":
            place = folder / rest.lstrip("/")
            place.mkdir(parents=True)
        elif verb == "COPY":
            _copy(place)
        elif verb == "RUN":
            if code := _run(rest, place, values, engines):
                return code
        else:
            sys.stdout.write(f"NOT RUN: {verb} {rest}\n")
    return 0


def _copy(place: Path) -> None:
    """Copy the tracked files: what `COPY . .` takes from a fresh clone."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = subprocess.run(["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=listed.stdout,
                           capture_output=True, check=True)  # fmt: skip
    subprocess.run(["tar", "-x"], cwd=place, input=names.stdout, check=True)


def _run(command: str, place: Path, values: dict[str, str], engines: list[str]) -> int:
    install = INSTALL.search(command)
    if install and engines and install["engine"] not in engines:
        sys.stdout.write(f"NOT RUN: RUN {command}\n")
        return 0
    sys.stdout.write(f"RUN {command}\n")
    sys.stdout.flush()
    return subprocess.run(["sh", "-ec", command], cwd=place, env=values, check=False).returncode


def main() -> int:
    """Return the code of the first line that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("engine", nargs="*")
    options = parser.parse_args()
    with scratch("kvproof-container-") as folder:
        return carry_out(list(lines(FILE.read_text())), folder, options.arg, options.engine)


if __name__ == "__main__":
    sys.exit(main())
