"""Results of mutmut from its files: the verdict of each mutant, by module."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

Verdict: TypeAlias = Literal["killed", "timeout", "survived", "not reached", "not judged"]

_SURVIVED: dict[int | None, Verdict] = {
    None: "not judged",
    0: "survived",
    5: "not reached",
    33: "not reached",
}
_TIMEOUTS = {24, 36, 152, 255, -24}
_Z = 1.96
"""Of a 95 % confidence interval."""


def verdict(code: int | None) -> Verdict:
    """Translate the end of a mutant's tests; everything but a pass is a find."""
    return _SURVIVED.get(code) or ("timeout" if code in _TIMEOUTS else "killed")


class Score(NamedTuple):
    """One module."""

    module: str
    verdicts: dict[str, Verdict]

    def names(self, *verdicts: Verdict) -> list[str]:
        """Return the mutants with one of the verdicts."""
        return [name for name, each in self.verdicts.items() if each in verdicts]

    @property
    def judged(self) -> int:
        """Return the mutants that have a verdict."""
        return len(self.verdicts) - len(self.names("not judged"))

    @property
    def share(self) -> float:
        """Share of the judged mutants that were found; 0 if there are none."""
        return len(self.names("killed", "timeout")) / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Interval of the score if the judged mutants are a random sample (Wilson)."""
        judged, share, z2 = self.judged, self.share, _Z * _Z
        if not judged:
            return 0.0, 1.0
        if judged == len(self.verdicts):
            return share, share
        middle = share + z2 / (2 * judged)
        away = _Z * math.sqrt(share * (1 - share) / judged + z2 / (4 * judged * judged))
        return (middle - away) / (1 + z2 / judged), (middle + away) / (1 + z2 / judged)


def scores(folder: Path, modules: Sequence[str]) -> list[Score]:
    """Read the verdicts in `folder`; without a file nothing was judged."""
    return [Score(name, dict(_verdicts(folder, name))) for name in modules]


def _verdicts(folder: Path, module: str) -> Iterator[tuple[str, Verdict]]:
    path = folder / f"mutants/src/kvproof/reference/{module}.py.meta"
    codes = json.loads(path.read_text())["exit_code_by_key"] if path.exists() else {}
    return ((name, verdict(code)) for name, code in codes.items())


def kept(text: str, *, survivors: bool) -> str:
    """Return a file of verdicts, with or without outdated ones."""
    meta: dict[str, Any] = json.loads(text)
    codes = meta["exit_code_by_key"]
    if not survivors:
        codes.update({name: None for name, code in codes.items() if code in _SURVIVED})
    return json.dumps(meta)


def table(found: Sequence[Score], *, sampled: bool) -> Iterator[str]:
    """Yield a Markdown table of the modules, and the survivors.

    `sampled`: the judged mutants were drawn at random, so a score has an interval.
    """
    yield "| module | mutants | judged | killed | of these by time | score |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for score in found:
        noticed, late = len(score.names("killed", "timeout")), len(score.names("timeout"))
        within = " ({:.0%} to {:.0%})".format(*score.interval) if sampled else ""
        numbers = f"{len(score.verdicts)} | {score.judged} | {noticed} | {late}"
        yield f"| `{score.module}` | {numbers} | {score.share:.1%}{within} |"
    for score in found:
        for name in score.names("survived", "not reached"):
            yield f"{score.verdicts[name]}: {name}"
