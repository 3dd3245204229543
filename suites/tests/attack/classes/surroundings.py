"""What surrounds a command: odd variables, other people's packages, taken places of outputs."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from kvproof.suites.tests.attack.materials import base, command
from kvproof.suites.tests.attack.processes import Command
from kvproof.suites.tests.attack.session import Attempt, Session
from kvproof.suites.tests.attack.values import LONG, SECRET

WRITERS = (
    "run", "fuzz", "gate", "replay", "bench", "plan", "merge", "compare", "eval generate",
    "baseline save", "record", "new-target",
)  # fmt: skip
READERS = (*WRITERS, "report", "history", "explain", "doctor", "targets list", "targets show")
NAMES = (
    "HOME", "TMPDIR", "PATH", "LANG", "LC_ALL", "TERM", "COLUMNS", "LINES", "NO_COLOR",
    "FORCE_COLOR", "TZ", "KVPROOF_HOME", "KVPROOF_PYTHON", "KVPROOF_RECORD", "KVPROOF_API_KEY",
    "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "GITHUB_ACTIONS", "CI",
    "OMP_NUM_THREADS", "http_proxy", "CUDA_VISIBLE_DEVICES", "USER",
)  # fmt: skip
VALUES = (
    "", "0", "-1", "nan", "1e999", "/dev/null", "/nowhere/at/all", "/proc/self", "file.txt",
    "file.txt/below", "unreadable", "dangling", "loop", "\udcff", "\x1b[2J", "x" * LONG, "C",
    "ascii", "tr_TR.UTF-8", "dumb", "1", "99999999999", "[red]", "://", "-", "~", "a:b", "../..",
)  # fmt: skip
TAKEN = (
    "record", "record/run.json", "record/events.jsonl", "record/report.html", "record/report.md",
    "record/junit.xml", "record/failures", "record/claims", "record/logs", "record/plan.json",
    "examples", "baselines", "baselines/main.json", "generated", "record/README.md",
)  # fmt: skip
PACKAGES = (
    "[kvproof.targets]\nreference = os:system\n", "[kvproof.targets]\nvllm = evil:make_target\n",
    "[kvproof.targets]\nmine = evil:make_target\n", "[kvproof.targets]\nmine = nosuch:thing\n",
    "[kvproof.targets]\n= evil:x\n", "[kvproof.targets]\nmine\n", "[kvproof.targets\nmine = a:b\n",
    "[kvproof.kernels]\nmine = evil:kernels\n", "[kvproof.plugins]\nmine = evil:plugin\n",
    "[pytest11]\nkvproof = evil\n", "[console_scripts]\nkvproof = evil:main\n",
    "[hypothesis]\nmine = evil:setup\n", "\0\0\0", "[kvproof.targets]\n" + "x = evil:y\n" * 3000,
    "[kvproof.targets]\n\x1b[2J = evil:x\n", "[kvproof.targets]\n" + "m" * LONG + " = evil:x\n",
)  # fmt: skip
EVIL = (
    "raise SystemExit(0)", "raise RuntimeError('x' * 100000)", "import os; os._exit(0)",
    "make_target = 3", f"raise ValueError('{SECRET}'[:0] + '\\x1b[2J')", "def make_target(): 1",
)  # fmt: skip


def attack(session: Session, random: Random) -> Attempt:
    """Change the surroundings of a valid command."""
    return random.choice((_variables, _taken, _taken, _packages))(session, random)


def _variables(session: Session, random: Random) -> Attempt:
    """Set some variables to values that nobody would choose, or take them away."""
    verb = session.verb(random.choice(READERS))
    names = random.sample(NAMES, random.choice((1, 2, 5)))

    def prepare(folder: Path) -> Command:
        made = command(verb, base(verb), folder)
        for name in names:
            made.environment.pop(name, None)
            if random.random() < 0.85:
                made.environment[name] = random.choice(VALUES)
        return made

    return session.attempt(random, verb.name, prepare)._replace(
        title=f"kvproof {verb.name} {names}"
    )


def _taken(session: Session, random: Random) -> Attempt:
    """Something else stands in the place that a command writes."""
    verb = session.verb(random.choice(WRITERS))

    def prepare(folder: Path) -> Command:
        for name in random.sample(TAKEN, random.choice((1, 1, 2, 3))):
            path = folder / "cwd" / name
            if not os.path.lexists(path.parent):
                path.parent.mkdir()
            if os.access(path.parent, os.W_OK) and path.parent.is_dir():
                _take(path, random)
        return command(verb, base(verb), folder)

    return session.attempt(random, verb.name, prepare)


def _take(path: Path, random: Random) -> None:
    how = -1 if os.path.lexists(path) else random.randrange(7)
    if how == 0:
        path.write_bytes(random.choice((b"", b"{}", b"\xff", b"{" * 1000)))
    elif how == 1:
        path.mkdir()
    elif how == 2:
        os.mkfifo(path)
    elif how == 3:
        path.symlink_to(random.choice(("nowhere", path.name, "/dev/full", "/dev/zero")))
    elif how == 4:
        path.mkdir(mode=0o555)
    elif how == 5:
        path.write_text("{}")
        path.chmod(0o444)
    elif how == 6:
        path.mkdir(mode=0o000)


def _packages(session: Session, random: Random) -> Attempt:
    """Install a package of other people, whose entry points have our groups or names."""
    verb = session.verb(random.choice(READERS))

    def prepare(folder: Path) -> Command:
        place = folder / "home" / "kvproof" / "packages"
        (info := place / "evil-1.0.dist-info").mkdir(parents=True)
        (info / "METADATA").write_text(random.choice(("Name: evil\nVersion: 1.0\n", "", "\0")))
        (info / "entry_points.txt").write_text(random.choice(PACKAGES))
        (place / "evil.py").write_text(random.choice(EVIL))
        made = command(verb, base(verb), folder, real=True, patience=8.0)
        made.environment["PYTHONPATH"] = str(place)
        return made

    return session.attempt(random, verb.name, prepare)
