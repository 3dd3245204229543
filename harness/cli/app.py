"""Verbs and options of `kvproof`; every verb delegates at once."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import publish
from kvproof.harness.cli.verbs import bench as bench_verb
from kvproof.harness.cli.verbs import cache_server, conformance
from kvproof.harness.cli.verbs import compare as compare_verb
from kvproof.harness.cli.verbs import eval as eval_verb
from kvproof.harness.cli.verbs import explain as explain_verb
from kvproof.harness.cli.verbs import faults as faults_verb
from kvproof.harness.cli.verbs import fuzz as fuzz_verb
from kvproof.harness.cli.verbs import gate as gate_verb
from kvproof.harness.cli.verbs import history as history_verb
from kvproof.harness.cli.verbs import merge as merge_verb
from kvproof.harness.cli.verbs import plan as plan_verb
from kvproof.harness.cli.verbs import probe as probe_verb
from kvproof.harness.cli.verbs import record as record_verb
from kvproof.harness.cli.verbs import serve as serve_verb
from kvproof.harness.cli.verbs import sweep as sweep_verb
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation import doctor as doctor_module
from kvproof.harness.isolation import environments
from kvproof.harness.isolation import signals as interrupts
from kvproof.harness.isolation.registry import expand, list_targets
from kvproof.harness.settings import load_settings
from kvproof.suites import known_bugs
from kvproof.suites.docs.properties_table import properties_table
from kvproof.suites.framework.property import Level

console = standard_output()
errors = Console(stderr=True)

app = App(
    name="kvproof",
    help="Proves whether the paged KV cache of an LLM engine is right, and how fast it is.",
    version=version("kvproof"),
    result_action="return_value",
    console=console,
)
targets_app = App(name="targets", help="Engines under test: list, install, remove, profile.")
app.command(targets_app)
app.command(cache_server.app)
app.command(plan_verb.plan)
app.command(probe_verb.probe)
app.command(explain_verb.explain)
app.command(record_verb.record)
app.command(faults_verb.faults)
app.command(sweep_verb.sweep)
app.command(eval_verb.eval_app)
app.command(serve_verb.serve)
app.command(compare_verb.compare)
app.command(compare_verb.baseline_app)
app.command(merge_verb.merge)
app.command(history_verb.history)


def _split(targets: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    """Accept `--targets a,b`, `--targets "a b"` and `--target a --target b`."""
    given = [name for item in targets or () for name in item.replace(",", " ").split()]
    if not (given or default):
        raise UsageError("there is no target to judge", "for example --target reference")
    return expand(given or default)


@app.command
def run(
    *,
    target: Targets = None,
    budget: Literal["pr", "nightly", "debug"] | None = None,
    level: Level = "core",
    seed: int | None = None,
    output: Output = None,
    config: Path | None = None,
    list_properties: bool = False,
) -> None:
    """Run the conformance suites against targets, bounded, for CI.

    Parameters
    ----------
    target
        reference, vllm==0.33.0, or your own package.module:make_target; repeatable. all: every
        target that is ready.
    budget
        pr (200 histories of 50 steps), nightly (2000 of 200) or debug.
    level
        core: the suite cache on one group. full: groups, states, media, experts, and the parts
        of the reference.
    seed
        Draw other histories than the budget's own.
    output
        Directory of the run's records and reports.
    config
        Settings file; kvproof.toml of the working directory by default.
    list_properties
        Print all properties, and the known bugs of engines that they catch, as Markdown; exit.

    """
    if list_properties:
        text = f"{properties_table()}\n## Known bugs\n\n{known_bugs.table()}"
        console.print(text, soft_wrap=True, markup=False, highlight=False)
        return
    settings = load_settings(config)
    conformance.run(
        _split(target, settings.run.targets),
        budget=budget or settings.run.budget,
        level=level,
        seed=seed,
        output=output,
        console=console,
    )


@app.command
def fuzz(
    *,
    target: Targets = None,
    max_time: str = "10m",
    workers: int = 1,
    level: Level = "core",
    seed: int | None = None,
    keep_going: bool = False,
    database: str = "",
    ray: str = "",
    units: int = 0,
    output: Output = None,
    config: Path | None = None,
) -> None:
    """Run the same machines with new seeds until the time is up or something new fails.

    Parameters
    ----------
    target
        As for run.
    max_time
        For example 90s, 10m, 2h; a run that is resumed goes on with what is left of it.
    workers
        Processes that explore side by side on one database.
    level
        As for run.
    seed
        First seed; random by default, or that of the run in output which is resumed.
    keep_going
        Go on after a failure and group failures by fingerprint.
    database
        Failing examples, shared by all workers and later runs: a directory, or redis://host/0;
        campaign.database of the settings file by default.
    ray
        Spread work units over a Ray cluster: auto, or its address.
    units
        End after so many work units (a suite, 200 histories from one seed); also without Ray.
    output
        Directory of the run's records and reports.
    config
        Settings file.

    """
    settings = load_settings(config)
    shared = settings.campaign
    if database:
        shared = replace(shared, database=database)
    fuzz_verb.fuzz(
        _split(target, settings.run.targets),
        max_seconds=seconds(max_time),
        workers=workers,
        level=level,
        seed=seed,
        keep_going=keep_going,
        shared=shared,
        output=output,
        console=console,
        ray=ray,
        units=units,
    )


@app.command
def replay(
    paths: list[Path],
    /,
    *,
    target: Targets = None,
    output: Output = None,
) -> None:
    """Run recorded failures again: FIXED, FAILED or ERROR each.

    Parameters
    ----------
    paths
        Op logs, or directories that are searched for them (a run's directory, the corpus); or
        recordings of kvproof record.
    target
        Target to replay on; by default the one that each log was recorded on. Recordings are judged
        as they are, without a target.
    output
        Directory of the run's records and reports.

    """
    targets = _split(target, ()) if target else ()
    if record_verb.are_recordings(paths):
        record_verb.replay(paths, targets=targets, output=output, console=console)
        return
    conformance.replay_all(paths, targets=targets, output=output, console=console)


@app.command
def bench(asked: Annotated[bench_verb.Asked, Parameter(name="*")] = bench_verb.USUAL) -> None:
    """Measure cache managers side by side: speed, memory, and hit rate against the optimum."""
    settings = load_settings(asked.config)
    bench_verb.bench(
        _split(asked.target, settings.run.targets),
        workload=asked.workload,
        options=asked.options(),
        output=asked.output,
        console=console,
    )


@app.command
def gate(
    *,
    target: Targets = None,
    config: Path | None = None,
    save_baseline: bool = False,
    output: Output = None,
) -> None:
    """Judge a change in one command: corpus, suites, bench, thresholds and kernels; one report.

    Parameters
    ----------
    target
        As for run.
    config
        Settings file; kvproof.toml of the working directory by default.
    save_baseline
        Store this run's figures as the baseline of this machine.
    output
        Directory of the run's records and reports.

    """
    settings = load_settings(config)
    gate_verb.gate(
        _split(target, settings.run.targets),
        settings,
        save=save_baseline,
        output=output,
        console=console,
    )


@app.command
def report(
    directory: Path,
    /,
    *,
    formats: Annotated[list[str] | None, Parameter(("--format", "--formats"))] = None,
) -> None:
    """Render a run again: report.html, report.md, junit.xml. Also for a run that was killed.

    Parameters
    ----------
    directory
        A run's directory, for example runs/latest.
    formats
        html, markdown, junit; all by default.

    """
    if eval_verb.is_eval(directory):
        eval_verb.publish(directory, console)
    else:
        publish(directory, console, formats or ())


@app.command
def doctor() -> None:
    """Say whether this machine is fit for kvproof, what is missing, and how to get it."""
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "detail", "how to get it"):
        table.add_column(column, overflow="fold")
    findings = doctor_module.diagnose()
    for finding in findings:
        table.add_row(*map(escape, (finding.state, finding.name, finding.detail, finding.command)))
    console.print(table)
    if any(finding.state == "problem" for finding in findings):
        raise SystemExit(Exit.USAGE)


@targets_app.command(name="list")
def list_() -> None:
    """List what can stand after --target, and what is installed."""
    table = Table(box=None, pad_edge=False)
    for column in ("target", "runs", "state"):
        table.add_column(column, overflow="fold")
    rows = list_targets()
    for row in rows:
        table.add_row(*map(escape, (row.name, row.isolation, row.state)))
    console.print(table)
    home = environments.home() / "targets"
    console.print(f"\nEnvironments are in {home}.", markup=False, soft_wrap=True)
    if lacking := [row for row in rows if row.command]:
        console.print(
            f"To build one that is missing or outdated: {lacking[-1].command}",
            markup=False,
            soft_wrap=True,
        )


@targets_app.command
def install(spec: str, /) -> None:
    """Build the environment of an engine, for example vllm==0.33.0; seconds if it is there.

    Parameters
    ----------
    spec
        Engine and version.

    """
    environments.install(
        spec,
        progress=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )


@targets_app.command
def remove(spec: str, /) -> None:
    """Delete the environment of an engine.

    Parameters
    ----------
    spec
        Engine and version.

    """
    removed = environments.remove(spec)
    told = f"{spec} is removed" if removed else f"{spec} was not installed"
    console.print(told, markup=False)


@targets_app.command
def profile(spec: str, /) -> None:
    """Show what a target supports, which properties it is judged by, and why not the others.

    Parameters
    ----------
    spec
        As for --target.

    """
    conformance.show_profile(spec, console)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with the codes of `Exit`."""
    interrupts.listen(signal.SIGINT, signal.SIGTERM)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _say(_complaint(error), f"see {' '.join(['kvproof', *(error.command_chain or ())])} --help")
        sys.exit(Exit.USAGE)
    except UsageError as error:
        _say(str(error), error.hint)
        sys.exit(Exit.USAGE)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last resort: a fault of kvproof itself
        _say(f"internal error: {type(error).__name__}: {error}", "please report these lines:")
        errors.print(traceback.format_exc(), markup=False, highlight=False, soft_wrap=True)
        sys.exit(Exit.HARNESS)


def _complaint(error: CycloptsError) -> str:
    """Return what is wrong with the command line, in one line."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {(error.unused_tokens or [''])[0]!r}"
    return " ".join(str(error).split())


def _say(message: str, hint: str = "") -> None:
    errors.print(f"kvproof: {message}", style="bold red", markup=False, soft_wrap=True)
    if hint:
        errors.print(f"  {hint}", markup=False, soft_wrap=True)
