"""`kvproof eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kvproof.harness.cli.arguments.eval import (
    DivergenceArguments,
    LongBenchArguments,
    MrcrArguments,
    RulerArguments,
    ScbenchArguments,
)

eval_app = App(
    name="eval",
    help="Does reuse cost answers? Per token, LongBench v2, SCBench; paired, with error rates.",
)
EACH = Parameter(name="*")
"""Every attribute is an option."""


@eval_app.command(name="longbench-v2")
def longbench_v2(arguments: Annotated[LongBenchArguments, EACH]) -> int:
    """Ask every configuration the same questions, cold and from the cache, and compare."""
    from kvproof.harness.cli.actions import eval as action

    return action.longbench_v2(arguments)


@eval_app.command
def divergence(
    arguments: Annotated[DivergenceArguments, EACH] = DivergenceArguments(),
) -> int:
    """Compare answers from hits with recomputed ones, token by token, and judge the cache."""
    from kvproof.harness.cli.actions import divergence as action

    return action.divergence(arguments)


@eval_app.command
def scbench(arguments: Annotated[ScbenchArguments, EACH]) -> int:
    """Ask several turns and requests about shared contexts, from the cache and recomputed."""
    from kvproof.harness.cli.actions import eval as action

    return action.scbench(arguments)


@eval_app.command
def ruler(arguments: Annotated[RulerArguments, EACH]) -> int:
    """Run RULER through OpenCompass, cold and from the cache, and compare.

    OpenCompass generates the data sets, after kvproof eval install, once for all configurations.
    """
    from kvproof.harness.cli.actions import long_context as action

    return action.ruler(arguments)


@eval_app.command
def mrcr(arguments: Annotated[MrcrArguments, EACH]) -> int:
    """Run MRCR through OpenCompass, cold and from the cache, and compare."""
    from kvproof.harness.cli.actions import long_context as action

    return action.mrcr(arguments)


@eval_app.command
def install() -> None:
    """Build a separate environment for OpenCompass; immediate if it exists."""
    from kvproof.harness.cli.actions import eval as action

    action.install()


@eval_app.command
def compare(before: Path, after: Path, /, *, output: Path | None = None) -> int:
    """Compare the configurations of a run with the first one of an earlier run.

    Parameters
    ----------
    before
        Directory of the earlier run, for example of an older version; its control pair counts.
    after
        Directory of the later run, which must have the same questions.
    output
        Directory for comparison.json, report.md and report.html.

    """
    from kvproof.harness.cli.actions import eval as action

    return action.compare(before, after, output=output)


@eval_app.command
def generate(
    directory: Path, /, *, samples: int = 48, max_tokens: int = 8000, seed: int = 0
) -> None:
    """Write synthetic samples, data.json and shared.json, to a directory.

    Parameters
    ----------
    directory
        Directory of the two files.
    samples
        Number of samples; domains, lengths, difficulties and letters get equal shares.
    max_tokens
        Tokens of the longest document.
    seed
        The same seed gives the same bytes.

    """
    from kvproof.harness.cli.actions import eval as action

    action.generate(directory, samples=samples, max_tokens=max_tokens, seed=seed)
