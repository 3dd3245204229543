"""The command line of an installation, by introspection: every verb with every option."""

from __future__ import annotations

import json
import subprocess
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_SOURCE = """
import json, sys
from kvproof.harness.cli.app import app

def walk(app, words):
    if app.default_command:
        options = [
            {
                "names": [n for n in each.names if not n.startswith(("--no-", "--empty"))],
                "kind": str(each.hint), "required": bool(each.required),
                "positional": each.is_positional_only() or each.is_var_positional(),
                "flag": each.is_flag(), "choices": list(each.get_choices() or ()),
            }
            for each in app.assemble_argument_collection() if each.parse and each.names != ("*",)
        ]
        yield {"words": words, "options": options}
    subs = getattr(app, "resolved_commands", dict)() or {n: app[n] for n in app}
    for name, sub in subs.items():
        if not name.startswith("-"):
            yield from walk(sub, [*words, name])

json.dump(list(walk(app, [])), sys.stdout)
"""


class Option(NamedTuple):
    """An option or argument of a verb."""

    names: tuple[str, ...]
    kind: str
    """Its type as Python writes it."""
    required: bool
    positional: bool
    flag: bool
    choices: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first name."""
        return self.names[0]

    @property
    def is_path(self) -> bool:
        """Whether its value is a file or a folder."""
        return "Path" in self.kind

    @property
    def is_secret(self) -> bool:
        """Whether its value must appear nowhere."""
        words = self.name.strip("-").split("-")
        return bool({"key", "password", "secret", "token"} & set(words)) and not self.is_path


class Verb(NamedTuple):
    """A command with all its words."""

    words: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """As typed."""
        return " ".join(self.words)


class Installation:
    """One kvproof: its command and its interpreter."""

    def __init__(self, command: Path) -> None:
        self.command = command
        self.python = command.with_name("python")

    @cached_property
    def has_torch(self) -> bool:
        """Whether its kernels can be swept."""
        code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
        return not subprocess.run([self.python, "-c", code], check=False).returncode

    @cached_property
    def verbs(self) -> tuple[Verb, ...]:
        """All of them, in the order of the application."""
        done = subprocess.run(
            [self.python, "-c", _SOURCE], capture_output=True, text=True, check=True
        )
        return tuple(
            Verb(
                tuple(each["words"]),
                tuple(
                    Option(**{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()})
                    for one in each["options"]
                ),
            )
            for each in json.loads(done.stdout)
        )
