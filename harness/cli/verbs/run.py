"""`kvproof run`, and certificates of whole runs: `kvproof certify`, `kvproof certificate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import App, Parameter

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.errors import Exit
from kvproof.harness.settings import BudgetName, LevelName, load_settings

ClassName: TypeAlias = Literal[
    "blocks", "hybrid", "engine", "disaggregated", "tier", "events", "router"
]
"""A conformance class of the specification."""

certificate_app = App(name="certificate", help="Verify a certificate of kvproof certify.")


def run(
    *,
    target: Targets = None,
    budget: BudgetName | None = None,
    level: LevelName = "core",
    seed: int | None = None,
    output: Output = None,
    config: Path | None = None,
    list_properties: bool = False,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Test targets with the conformance suites; bounded, for CI.

    Parameters
    ----------
    target
        reference, vllm==0.33.0, or your own package.module:make_target; repeatable. all: every
        target that is ready.
    budget
        pr (200 histories of 50 steps), nightly (2000 of 200) or debug.
    level
        core: the suite cache on one group. full: groups, states, media, experts, and the
        component suites of the reference.
    seed
        Seed of the histories; the budget's own by default.
    output
        Directory of the run's records and reports.
    config
        Settings file; kvproof.toml of the working directory by default.
    list_properties
        Print all properties and the known engine bugs that they find, as Markdown; exit.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions.targets import chosen_targets

    settings = load_settings(config)
    specs = (
        ()
        if list_properties
        else chosen_targets(target, settings.run.targets, **isolation.connectors(settings.run))
    )
    from kvproof.harness.cli.actions import conformance  # dear: a mistyped target does without

    if list_properties:
        conformance.list_properties()
        return Exit.PASS
    return conformance.run(
        specs,
        budget=budget or settings.run.budget,
        level=level,
        seed=seed,
        output=output,
        own=isolation.own_targets(settings.run),
    )


def certify(
    target: str,
    /,
    *,
    conformance_class: Annotated[ClassName, Parameter("--class")],
    certificate: Path = Path("kvproof-certificate.json"),
    output: Output = None,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Run what a conformance class demands, and write a certificate.

    Core rules have to pass; a known failure does not pass one, and nothing may be inconclusive.
    Extended rules are listed as the target keeps them. Ends as run does.

    Parameters
    ----------
    target
        As for run, one target.
    conformance_class
        Kind of target whose rules are judged; docs/reference/specification.md has them.
    certificate
        File to write.
    output
        Directory of the run's records and reports, which the certificate names by their hashes.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions import certify as action
    from kvproof.harness.cli.actions.targets import chosen_targets

    settings = load_settings().run
    specs = chosen_targets([target], (), **isolation.connectors(settings))
    own = isolation.own_targets(settings)
    return action.certify(specs, conformance_class, file=certificate, output=output, own=own)


@certificate_app.command
def verify(file: Path, /, *, run: Path | None = None, repeat: bool = False) -> int:
    """Check a certificate against the specification, its records, and a run of your own.

    Ends with 1 for a certificate that contradicts any of them.

    Parameters
    ----------
    file
        The certificate.
    run
        Directory with the records that it names; no engine is needed.
    repeat
        Judge its target again on this machine, by the same seeds, and compare every property.

    """
    from kvproof.harness.cli.actions import certify as action

    return action.verify(file, run=run, repeat=repeat)
