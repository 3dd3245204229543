"""Results of the self-check."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers

TOLERANCE = 1e-3
"""Of the largest logit, in float32; with fewer bits rounding alone may choose other experts."""


class Finding(NamedTuple):
    """Result of one comparison."""

    name: str
    difference: float
    limit: float
    upstream: bool = False
    """Whether transformers was compared with itself."""
    ahead: bool = False
    """Whether it shows that tokens attend to later ones."""

    @property
    def passed(self) -> bool:
        """Return whether it holds."""
        return self.difference <= self.limit

    @property
    def text(self) -> str:
        """Return the comparison and its result, for people."""
        return f"{self.name.rstrip(',')} {self.difference:.0e}" if self.limit else self.name


class SelfCheck(NamedTuple):
    """All comparisons of one model."""

    family: str
    findings: tuple[Finding, ...]
    missed: tuple[str, ...] = ()
    """What was not compared, and why."""
    images: str = ""
    """Why no images can be shown to the model; empty if they can."""
    copied: tuple[int, int] = (0, 0)
    """Layers of the copy in float32, and of the model."""

    @property
    def problem(self) -> str:
        """Return the cause of the first failure; empty if there is none."""
        for finding in self.findings:
            if not finding.passed:
                return self._blame(finding)
        return ""

    def _blame(self, finding: Finding) -> str:
        size = f"{finding.name} changes logits by {finding.difference:.1e}"
        version = f"transformers {transformers.__version__}"
        if finding.ahead:
            return (
                f"family {self.family} is not served: its tokens attend to later ones of the "
                f"prompt (prefix-LM attention), so an entry of one cannot serve another: {size}"
            )
        if finding.upstream:
            return f"family {self.family} is wrong in {version}: {size}"
        return f"the runner does not reproduce family {self.family} of {version}: {size}"


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the largest difference; infinite for NaN."""
    largest = (left.double() - right.double()).abs().max()
    return float(torch.nan_to_num(largest, nan=float("inf")))


def prompt_of(model: Any, length: int) -> list[int]:
    """Return a prompt of different tokens, usually none of them special."""
    size = model.config.get_text_config(decoder=True).vocab_size
    return [int(size * (3 + n) / (2 * length)) for n in range(length)]
