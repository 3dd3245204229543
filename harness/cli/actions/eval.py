"""`kvproof eval`: LongBench v2 for several configurations of an engine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace
from rich.console import Console

from kvproof.eval.benchmark.prompts import PromptSet, opencompass_prompts, read_prompts
from kvproof.eval.opencompass import environment
from kvproof.eval.opencompass import runner as opencompass
from kvproof.eval.run.config import QUICK, EvalConfig, check_servers, read_config, with_urls
from kvproof.eval.run.files import Writer
from kvproof.eval.run.generator import GeneratorOptions, write_generated
from kvproof.eval.run.protocol import Questions
from kvproof.eval.run.records import SAMPLES, Conditions, EvalRun, Record, read_eval
from kvproof.eval.run.runner import Runner, RunSink, Sources, conditions, evaluate, material
from kvproof.eval.run.weights import weights_digest
from kvproof.eval.scbench import records as scbench_records
from kvproof.eval.scbench import report as scbench_report
from kvproof.eval.scbench.data import Task, read_sessions
from kvproof.eval.scbench.miniature import miniature
from kvproof.eval.scbench.protocol import Plan, run
from kvproof.eval.scbench.records import Mode, Options
from kvproof.eval.verdict.power import power
from kvproof.eval.verdict.report import print_summary, render, write_reports
from kvproof.eval.verdict.summary import Summary, across, stored
from kvproof.harness.cli.output import print_text, standard_output
from kvproof.harness.cli.progress import progress
from kvproof.harness.cli.runs import link_latest, new_directory, new_manifest
from kvproof.harness.errors import UsageError
from kvproof.harness.redaction import redacted_tree

RunnerName = Literal["kvproof", "opencompass"]


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
    quick: bool = False,
    skip_bad_rows: bool = False,
) -> int:
    """Run the same questions on every configuration and compare; returns the exit code.

    Raises UsageError for an invalid configuration, data file or server.
    """
    asked = with_urls(read_config(config), named_urls(url))
    asked = replace(asked, model=model or asked.model)
    if quick:
        _check_quick(data)
        asked = replace(asked, synthetic=QUICK)
    check_servers(asked)
    directory = output or new_directory("eval")
    client = chosen(runner, directory)
    chosen_prompts = prompts_of(prompts, cot=cot, shipped=runner != "kvproof")
    sources = Sources(data, shared, skip_bad_rows, chosen_prompts)
    console = standard_output()
    with material(asked, sources, directory / "data") as found:
        kept = redacted_tree(stored(asked, conditions_of(asked, found, runner)))
        earlier = earlier_records(directory, kept)
        for line in power(asked, found.data.facts.samples):
            console.print(line, markup=False, highlight=False)
        manifest = new_manifest("eval", directory, kept)
        writer = Writer(directory, manifest, SAMPLES, resumes=True)
        with closing(writer), progress(console) as shown:
            outlet = RunSink(writer.write, shown, directory / "servers")
            try:
                evaluate(asked, found, outlet, earlier=earlier, runner=client)
            except (KeyboardInterrupt, UsageError):
                resumable(console, directory)
                raise
    return publish(directory, console).exit


def _check_quick(data: Path | None) -> None:
    if data is not None:
        raise UsageError(
            f"--quick generates its own samples, and --data {str(data)!r} names others",
            "leave one of them out",
        )


def scbench(
    *,
    config: Path,
    data: Path | None,
    tasks: Sequence[Task],
    modes: Sequence[Mode],
    sessions: int,
    margin: float,
    model: str,
    url: Sequence[str] | None,
    output: Path | None,
) -> int:
    """Run SCBench, or its miniature, and judge; returns the exit code. Raises UsageError."""
    asked = with_urls(read_config(config), named_urls(url))
    asked = replace(asked, model=model or asked.model)
    check_servers(asked)
    if sessions < 1 or not 0 < margin < 1:
        raise UsageError(
            f"{sessions} sessions and a margin of {margin:g} cannot be run",
            "for example --sessions 16 --margin 0.1",
        )
    found = read_sessions(data, tasks, most=sessions) if data else miniature(tasks, sessions)
    options = Options(
        tasks=tuple(tasks), modes=tuple(modes), sessions=sessions, data=str(data or ""),
        margin=margin, config=asked, weights=weights_digest(asked.model),
    )  # fmt: skip
    directory, console = output or new_directory("eval"), standard_output()
    kept = redacted_tree(scbench_records.stored(options))
    writer = Writer(directory, new_manifest("eval", directory, kept), scbench_records.LINES)
    with closing(writer), progress(console) as shown:
        run(Plan(asked, found, options.modes, writer.write, shown, directory / "servers"))
    return publish_scbench(directory).exit


def publish_scbench(directory: Path) -> scbench_report.Summary:
    """Render a run of SCBench, print the summary, and link `runs/latest` to it."""
    summary = scbench_report.render(scbench_records.read_scbench(directory))
    scbench_report.print_summary(summary, standard_output())
    link_latest(directory)
    return summary


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
    return opencompass.Runner(environment.require(), folder)


_OWN, _SHIPPED = Path("kvproof"), Path("opencompass")
"""Words for --prompts."""


def prompts_of(given: Path | None, *, cot: bool, shipped: bool) -> PromptSet | None:
    """Return the prompts to use; None for our own. Raises UsageError.

    `shipped`: OpenCompass's by default.
    """
    if given == _SHIPPED or (given is None and shipped):
        if cot:
            raise UsageError(
                "OpenCompass has no chain of thought", "leave --cot out, or give other --prompts"
            )
        return opencompass_prompts(environment.require().prompts)
    if given is None or given == _OWN:
        if cot:
            raise UsageError("--cot without --prompts", "give a checkout of THUDM/LongBench")
        return None
    return read_prompts(given, cot=cot)


def conditions_of(asked: EvalConfig, found: Questions, runner: RunnerName) -> Conditions:
    """Return the conditions of the run, with a note about OpenCompass's prompt."""
    name = "kvproof" if runner == "kvproof" else str(environment.OpenCompass())
    made = conditions(asked, found, runner=name)
    notes = (opencompass.PROMPT_NOTE,) if found.prompts.shipped else ()
    return replace(made, data=replace(made.data, notes=(*made.data.notes, *notes)))


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


def named_urls(given: Sequence[str] | None) -> dict[str, str]:
    """Return addresses by configuration. Raises UsageError."""
    found = {}
    for each in given or ():
        name, equals, address = each.partition("=")
        if not equals:
            raise UsageError(
                f"--url {each!r} has no name", 'for example --url "off=http://127.0.0.1:8000/v1"'
            )
        found[name.strip()] = address.strip()
    return found


def earlier_records(directory: Path, kept: dict[str, Any]) -> list[Record]:
    """Return the records of a killed run with the same command. Raises UsageError."""
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


def resumable(console: Console, directory: Path) -> None:
    """Print how a run goes on."""
    console.print(
        f"Records: {directory}; the same command with --output {directory} goes on from there",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
