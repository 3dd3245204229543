"""`kvproof eval`: LongBench v2 and SCBench for several configurations of an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from kvproof.eval.benchmark.prompts import PromptSet, opencompass_prompts, read_prompts
from kvproof.eval.kinds import judged
from kvproof.eval.opencompass import environment
from kvproof.eval.opencompass import runner as opencompass
from kvproof.eval.run.config import QUICK, EvalConfig, check_servers, read_config, with_urls
from kvproof.eval.run.files import Writer, stored
from kvproof.eval.run.generator import GeneratorOptions, write_generated
from kvproof.eval.run.protocol import Material, Questions, RunSink
from kvproof.eval.run.records import Conditions, read_eval
from kvproof.eval.run.runner import Runner, Sources, conditions, evaluate, material
from kvproof.eval.run.weights import weights_digest
from kvproof.eval.scbench import records as scbench_records
from kvproof.eval.scbench import report as scbench_report
from kvproof.eval.scbench.data import TASKS, read_sessions
from kvproof.eval.scbench.miniature import miniature
from kvproof.eval.scbench.protocol import Sessions
from kvproof.eval.scbench.records import MODES, Options
from kvproof.eval.verdict.evaluated import EXITS, Evaluated
from kvproof.eval.verdict.power import power
from kvproof.eval.verdict.report import of_summary
from kvproof.eval.verdict.summary import across
from kvproof.harness.cli.arguments.eval import (
    EvalArguments,
    LongBenchArguments,
    ScbenchArguments,
)
from kvproof.harness.cli.output import print_text, standard_output
from kvproof.harness.cli.runs import (
    ActiveRun,
    Resumes,
    new_directory,
    new_manifest,
    run_directory,
)
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records.eval_events import EvalStarted
from kvproof.harness.records.events import Ended
from kvproof.harness.records.run_directory import Run, read_manifest, refuse_record, store
from kvproof.reports.render.render import render
from kvproof.reports.render.terminal import print_run

RunnerName = Literal["kvproof", "opencompass"]


def longbench_v2(given: LongBenchArguments) -> int:
    """Run the same questions on every configuration and compare; returns the exit code.

    Raises UsageError for an invalid configuration, data file or server.
    """
    asked = configured(given)
    if given.quick:
        _check_quick(given.data)
        asked = replace(asked, synthetic=QUICK)
    directory = given.output or new_directory("eval")
    client = chosen(given.runner, directory)
    prompts = prompts_of(given.prompts, cot=given.cot, shipped=given.runner != "kvproof")
    sources = Sources(given.data, given.shared, given.skip_bad_rows, prompts)
    with material(asked, sources, directory / "data") as found:
        under = conditions_of(asked, found, given.runner)
        return answered(asked, found, under, directory, client)


def configured(given: EvalArguments) -> EvalConfig:
    """Return the configurations of a file, with running servers. Raises UsageError."""
    asked = with_urls(read_config(given.config), named_urls(given.url))
    asked = replace(asked, model=given.model or asked.model)
    check_servers(asked)
    return asked


def answered(
    asked: EvalConfig,
    found: Material,
    under: Conditions,
    directory: Path,
    runner: Runner | None,
    benchmark: str = "longbench_v2",
) -> int:
    """Ask what an earlier part of the run has not, and judge; returns the exit code."""
    for line in power(asked, under.data.samples):
        print_text(line)
    earlier = read_eval(directory).records if (directory / "run.json").exists() else ()
    begun = EvalStarted(benchmark=benchmark, title=under.data.title, lines=())

    def ask(sink: RunSink) -> None:
        evaluate(asked, found, sink, earlier=earlier, runner=runner)

    settings = stored(benchmark=benchmark, evaluation=asked, conditions=under)
    return recorded(directory, begun, settings, ask, resumes="always")


def recorded(
    directory: Path,
    begun: EvalStarted,
    config: dict[str, Any],
    ask: Callable[[RunSink], None],
    *,
    resumes: Resumes = "never",
) -> int:
    """Record the answers of an evaluation and the verdicts on them; returns the exit code."""
    hint = f"Records: {directory}; the same command with --output {directory} goes on from there"
    try:
        with run_directory("eval", config=config, output=directory, resumes=resumes) as active:
            active.write(begun)
            with closing(Writer(directory, read_manifest(directory))) as writer:
                show = partial(active.status, begun.benchmark)
                ask(RunSink(writer.write, show, directory / "servers"))
            _conclude(active, judged(directory))
    except UsageError:
        if resumes != "never":
            print_text(hint)
        raise
    if resumes != "never" and active.exit_code == Exit.INTERRUPTED:
        print_text(hint)
    return active.exit_code


def _conclude(active: ActiveRun, found: Evaluated) -> None:
    for event in found.events():
        active.write(event)
    active.writer.write_file(found.file, found.json())


def _check_quick(data: Path | None) -> None:
    if data is not None:
        raise UsageError(
            f"--quick generates its own samples, and --data {str(data)!r} names others",
            "leave one of them out",
        )


def scbench(given: ScbenchArguments) -> int:
    """Run SCBench, or its miniature, and judge; returns the exit code. Raises UsageError."""
    asked, sessions = configured(given), given.sessions
    if sessions < 1 or not 0 < given.margin < 1:
        raise UsageError(
            f"{sessions} sessions and a margin of {given.margin:g} cannot be run",
            "for example --sessions 16 --margin 0.1",
        )
    tasks, modes, data = given.tasks or TASKS, given.modes or MODES, given.data
    found = read_sessions(data, tasks, most=sessions) if data else miniature(tasks, sessions)
    options = Options(
        tasks=tuple(tasks), modes=tuple(modes), sessions=sessions, data=str(data or ""),
        margin=given.margin, config=asked, weights=weights_digest(asked.model),
    )  # fmt: skip
    begun = EvalStarted(
        benchmark=scbench_records.KEY, title=scbench_report.title(options), lines=()
    )

    def ask(sink: RunSink) -> None:
        once = replace(asked, protocol=replace(asked.protocol, repeats=1))
        evaluate(once, Sessions(asked, found, options.modes), sink)

    directory = given.output or new_directory("eval")
    return recorded(directory, begun, stored(scbench=options), ask)


def install() -> None:
    """Build the environment of OpenCompass, and print the progress. Raises UsageError."""
    environment.install(progress=print_text)


def compare(before: Path, after: Path, *, output: Path | None) -> int:
    """Compare two runs, print and store the comparison; returns the exit code."""
    if output is not None:
        refuse_record(output)
    found = of_summary(across(read_eval(before), read_eval(after)))
    directory = output or Path()
    run = Run(
        directory=directory,
        manifest=new_manifest("eval", directory, {"before": str(before), "after": str(after)}),
        events=[*found.events(), _closed(found)],
    )
    if output is not None:
        store(output / found.file, found.json())
        render(run, directory=output)
    print_run(run, standard_output())
    return EXITS[found.verdict]


def _closed(found: Evaluated) -> Ended:
    code = EXITS[found.verdict]
    return Ended(verdict=found.verdict, exit_code=code, sentence=found.sentence, seconds=0.0)


def generate(directory: Path, **options: int) -> None:
    """Write generated samples to a directory. Raises UsageError."""
    refuse_record(directory)
    for path in write_generated(directory, GeneratorOptions(**options)):
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
