"""The cost of a start: modules, which a test counts, and seconds, which `make starts` measures."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

from kvproof.suites.tests.cli.cli_kit import KVPROOF

_LINE = frozenset({"attr", "attrs", "cyclopts", "msgspec", "rich", "typing_extensions"})
_HELP = _LINE | {"docstring_parser", "markdown_it", "mdurl", "pygments"}


class Start(NamedTuple):
    """A command that ends before its verb works."""

    words: str
    own: int
    """Modules of kvproof that it may import; the number only falls."""
    packages: frozenset[str]
    """Packages of others that it may import."""
    seconds: float
    """CPU time that it may take where one core compares with a server's."""


STARTS = (
    Start("--version", 4, frozenset(), 0.15),
    Start("rnu", 16, _LINE, 0.25),
    Start("--help", 46, _HELP, 0.5),
    Start("run --help", 22, _HELP, 0.5),
    *(
        Start(words, 46, _LINE, 0.5)
        for words in (
            "run --target nowhere",
            "run --target vlm==0.33.0",
            "run --target no-module:make_target",
            "fuzz --target nowhere",
            "gate --target nowhere",
            "replay nothing.json --target nowhere",
            "bench --target nowhere",
            "targets show nowhere",
            "targets install nowhere==1.0",
        )
    ),
)


def loaded(code: str, *words: str) -> set[str]:
    """Modules that a process has imported when it ends, without those of a bare interpreter."""
    listing = "import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    return _modules(listing + code, *words) - _modules(listing)


def _modules(code: str, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    return set(done.stderr.splitlines()[-1].split())


def packages(modules: set[str]) -> set[str]:
    """The packages of others among modules."""
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"kvproof"}


def cpu_seconds(words: str, *, runs: int) -> float:
    """User and system time of a command, its start included; of so many runs the cheapest."""
    return min(_cpu_seconds(words) for _ in range(runs))


def _cpu_seconds(words: str) -> float:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([KVPROOF, *words.split()], **quiet)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime


def main(runs: int = 5) -> int:
    """Print the seconds of every start; 1 if one takes more than it may."""
    over = 0
    for start in STARTS:
        taken = cpu_seconds(start.words, runs=runs)
        over += taken > start.seconds
        mark = "  too much" if taken > start.seconds else ""
        sys.stdout.write(f"{taken:5.2f} s of {start.seconds:.2f}  kvproof {start.words}{mark}\n")
    return min(over, 1)


if __name__ == "__main__":
    sys.exit(main())
