"""`kvproof eval`: LongBench v2 for several configurations of an engine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvproof.eval.benchmark.prompts import PromptSet, opencompass_prompts, read_prompts
from kvproof.eval.opencompass import environment
from kvproof.eval.opencompass import runner as opencompass
from kvproof.eval.run.config import EvalConfig, check_servers, read_config, with_urls
from kvproof.eval.run.generator import GeneratorOptions, write_generated
from kvproof.eval.run.protocol import Questions
from kvproof.eval.run.records import Conditions, EvalRun, Record, Writer, read_eval
from kvproof.eval.run.runner import Progress as Shown
from kvproof.eval.run.runner import Runner, RunSink, Sources, conditions, evaluate, material
from kvproof.eval.verdict.report import print_summary, render, write_reports
from kvproof.eval.verdict.summary import Summary, across, stored
from kvproof.harness.cli.output import print_text, standard_output
from kvproof.harness.cli.runs import link_latest, new_directory, new_manifest
from kvproof.harness.errors import UsageError
from kvproof.harness.redaction import redacted_tree

RunnerName = Literal["kvproof", "opencompass", "stock"]


def longbench_v2(
    *,
    config: Path,
    data: Path | None,
    shared: Path | None,
    prompts: Path | None,
    cot: bool,
    runner: RunnerName,
    model: str,
    url: Sequence[str] | None,
    output: Path | None,
) -> int:
    """Run the same questions on every configuration and compare; returns the exit code.

    Raises UsageError for an invalid configuration, data file or server.
    """
    asked = with_urls(read_config(config), _urls(url))
    asked = replace(asked, model=model or asked.model)
    check_servers(asked)
    directory = output or new_directory("eval")
    client = chosen(runner, directory)
    sources = Sources(data, shared, prompts_of(prompts, cot=cot, stock=runner == "stock"))
    console = standard_output()
    with material(asked, sources, directory / "data") as found:
        kept = redacted_tree(stored(asked, conditions_of(asked, found, runner)))
        earlier = _earlier(directory, kept)
        writer = Writer(directory, new_manifest("eval", directory, kept))
        with closing(writer), _shown(console) as progress:
            outlet = RunSink(writer.write, progress, directory / "servers")
            try:
                evaluate(asked, found, outlet, earlier=earlier, runner=client)
            except (KeyboardInterrupt, UsageError):
                _resumable(console, directory)
                raise
    return publish(directory, console).exit


def install() -> None:
    """Build the environment of OpenCompass, and print the progress. Raises UsageError."""
    environment.install(progress=print_text)


def compare(before: Path, after: Path, *, output: Path | None) -> int:
    """Compare two runs, print and store the comparison; returns the exit code."""
    summary = across(read_eval(before), read_eval(after))
    if output is not None:
        summary = replace(summary, directory=str(output))
        write_reports(summary, output)
    print_summary(summary, standard_output())
    return summary.exit


def generate(directory: Path, options: GeneratorOptions) -> None:
    """Write generated samples to a directory. Raises UsageError."""
    for path in write_generated(directory, options):
        print_text(f"written: {path}")


def chosen(runner: RunnerName, directory: Path) -> Runner | None:
    """Return what asks; None for our own client. Raises UsageError without OpenCompass."""
    if runner == "kvproof":
        return None
    folder = directory / "opencompass"
    return opencompass.Runner(environment.require(), folder, stock=runner == "stock")


def prompts_of(given: Path | None, *, cot: bool, stock: bool) -> PromptSet | None:
    """Return the prompts to use; None for our own. Raises UsageError."""
    if stock or given == Path("opencompass"):
        if cot or (stock and given not in (None, Path("opencompass"))):
            raise UsageError(
                "OpenCompass has one prompt of its own", "leave --prompts and --cot out"
            )
        return opencompass_prompts(environment.require().prompts)
    if given is None:
        if cot:
            raise UsageError("--cot without --prompts", "give a checkout of THUDM/LongBench")
        return None
    return read_prompts(given, cot=cot)


def conditions_of(asked: EvalConfig, found: Questions, runner: RunnerName) -> Conditions:
    """Return the conditions of the run; the stock configuration reports its own."""
    if runner == "kvproof":
        return conditions(asked, found)
    if runner == "opencompass":
        return conditions(asked, found, runner=opencompass.NAME)
    made = conditions(asked, found, runner=opencompass.STOCK, extraction=opencompass.GUESSED)
    notes = (*made.data.notes, opencompass.STOCK_NOTE)
    return replace(made, data=replace(made.data, notes=notes))


def publish(directory: Path, console: Console) -> Summary:
    """Render a run's reports, print the summary, and link `runs/latest` to it."""
    summary = render(read_eval(directory))
    print_summary(summary, console)
    link_latest(directory)
    return summary


def is_eval(directory: Path) -> bool:
    """Whether a run's directory holds an evaluation."""
    try:
        return read_eval(directory).manifest.verb == "eval"
    except UsageError:
        return False


def _urls(given: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for each in given or ():
        name, equals, address = each.partition("=")
        if not equals:
            raise UsageError(
                f"--url {each!r} has no name", 'for example --url "off=http://127.0.0.1:8000/v1"'
            )
        found[name.strip()] = address.strip()
    return found


def _earlier(directory: Path, kept: dict[str, Any]) -> list[Record]:
    if not (directory / "run.json").exists():
        return []
    run = read_eval(directory)
    if difference := _difference(run, kept):
        raise UsageError(
            f"{str(directory)!r} holds another run, {shlex.join(run.manifest.command)}: "
            f"{difference}",
            "choose another --output, or repeat that very command to resume it",
        )
    return run.records


def _difference(run: EvalRun, kept: dict[str, Any]) -> str:
    now = _flat(msgspec.json.decode(msgspec.json.encode(kept)))
    then = _flat(run.manifest.config)
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            return f"{name} was {then.get(name)!r} and is {now.get(name)!r}"
    return ""


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: dict[str, Any] = {}
    for name, value in items:
        nested = isinstance(value, dict | list) and bool(value)
        key = f"{prefix}{name}"
        found |= _flat(value, f"{key}.") if nested else {key: value}
    return found


def _resumable(console: Console, directory: Path) -> None:
    console.print(
        f"Records: {directory}; the same command with --output {directory} goes on from there",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@contextmanager
def _shown(console: Console) -> Iterator[Shown]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("starting", total=None)
        last = ""

        def show(text: str, done: int, total: int) -> None:
            nonlocal last
            bars.update(task, description=text, completed=done, total=total)
            if not console.is_terminal and text != last:
                console.print(f"{text} ({done} of {total})", highlight=False, markup=False)
            last = text

        yield show
