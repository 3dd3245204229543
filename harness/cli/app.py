"""The application `kvproof`: its verbs by import path, and the last word on every error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib.metadata import version

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError
from rich.console import Console

from kvproof.harness import redaction
from kvproof.harness.cli.options import check_option, converted
from kvproof.harness.cli.output import hidden_secrets, standard_output
from kvproof.harness.cli.secrets import refuse_secrets
from kvproof.harness.cli.silence import broken_silence
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation import signals as interrupts
from kvproof.harness.machine_limits import limit_of_the_machine

VERBS = {
    "run": "run:run",
    "fuzz": "fuzz:fuzz",
    "replay": "replay:replay",
    "xfail": "replay:xfail",
    "bisect": "replay:bisect",
    "certify": "run:certify",
    "certificate": "run:certificate_app",
    "gate": "gate:gate",
    "faults": "faults:faults",
    "bench": "bench:bench",
    "sweep": "sweep:sweep",
    "eval": "eval:eval_app",
    "probe": "probe:probe",
    "record": "record:record",
    "watch": "watch:watch",
    "explain": "explain:explain",
    "compare": "compare:compare",
    "baseline": "compare:baseline_app",
    "merge": "report:merge",
    "report": "report:report",
    "history": "report:history",
    "plan": "plan:plan",
    "serve": "serve:serve",
    "cache-server": "cache_server:app",
    "targets": "targets:app",
    "new-target": "targets:new_target",
    "doctor": "doctor:doctor",
}
"""Verb -> module in `kvproof.harness.cli.verbs`, and the function or App in it."""


def _application() -> App:
    """Verbs are import paths, so a command imports the module of its own verb only."""
    made = App(
        name="kvproof",
        help="Tests the paged KV cache of an LLM engine: correctness and speed.",
        version=lambda: version("kvproof"),
        result_action="return_value",
        default_parameter=Parameter(
            negative_iterable=(), converter=converted, validator=check_option
        ),
    )
    for name, path in VERBS.items():
        made.command(f"kvproof.harness.cli.verbs.{path}", name=name)
    return made


app = _application()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with the codes of `Exit`."""
    interrupts.listen(*interrupts.ENDS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    redaction.begin(words, os.environ)
    with hidden_secrets():
        code = _run(words)
    if code:
        sys.exit(code)


def _run(words: list[str]) -> int | None:
    if not words or words[0] in ("--help", "-h"):
        app.resolved_commands()  # the help of a verb is in its module
    try:
        refuse_secrets(words)
        with broken_silence(words[0]) if words and words[0] in VERBS else nullcontext():
            code: int | None = app(
                words, console=standard_output(), exit_on_error=False, print_error=False
            )
    except CycloptsError as error:
        _say(*_complaint(error))
        sys.exit(Exit.USAGE)
    except UsageError as error:
        _say(str(error), error.hint)
        sys.exit(Exit.USAGE)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except RecursionError:
        _say("the input is nested too deep", "give a path or a file with fewer levels")
        sys.exit(Exit.USAGE)
    except Exception as error:  # noqa: BLE001 - the last resort: a fault of kvproof itself
        if limit := limit_of_the_machine(error):
            _say(*limit)
            sys.exit(Exit.USAGE)
        _say(f"internal error: {type(error).__name__}: {error}", "please report these lines:")
        _errors().print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        sys.exit(Exit.HARNESS)
    return code


def _complaint(error: CycloptsError) -> tuple[str, str]:
    chain = error.command_chain or ()
    hint = f"see {' '.join(['kvproof', *chain])} --help"
    unused = (error.unused_tokens or [""])[0]
    if isinstance(error, UnknownCommandError) and not chain:  # its own text imports every verb
        close = get_close_matches(unused, VERBS, 1)
        return f"unknown verb {unused!r}", f"did you mean {close[0]!r}? {hint}" if close else hint
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {unused!r}", hint
    return " ".join(str(error).split()), hint


def _errors() -> Console:
    return Console(stderr=True, emoji=False)


def _say(message: str, hint: str = "") -> None:
    try:
        _print(message, hint)
    except OSError:  # without descriptors nothing more can be imported
        sys.stderr.write(f"kvproof: {ascii(message)[1:-1]}\n  {ascii(hint)[1:-1]}\n")


def _print(message: str, hint: str) -> None:
    errors = _errors()
    from kvproof.harness import foreign_text  # dear: a start has no text of others

    line = f"kvproof: {foreign_text.message(message)}"
    errors.print(line, style="bold red", markup=False, soft_wrap=True)
    if hint:
        errors.print(f"  {foreign_text.message(hint)}", markup=False, soft_wrap=True)
