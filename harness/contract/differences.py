"""Differences between an installed engine and the interface that its adapter was written for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["call", "attribute", "import", "machine", "package", "release"]


@dataclass(frozen=True)
class Difference:
    """One difference, as data: an adapter finds them, `kvproof targets check` prints them."""

    kind: Kind
    """Kind of its subject: a callable, an attribute of an object, a name of a module, a part of the
    machine, another package that the engine imports, or the release itself."""
    name: str
    """Dotted path of the callable or attribute, the module, or the package."""
    expected: str
    """Parameters, in order, or the name that the adapter needs."""
    found: str = ""
    """Parameters, in order, or the object found instead; empty: none."""
    blocks: bool = True
    """The adapter cannot drive the engine; False: its call is still a valid one."""

    def __str__(self) -> str:
        if self.kind == "attribute":
            return f"{self.name} has no attribute {self.expected}"
        if self.kind != "call":
            return self.found
        if not self.found:
            return f"{self.name} does not accept {self.expected}"
        if not self.expected:
            return f"{self.name} is there"
        return f"{self.name}({self.found}), expected ({self.expected})"

    @property
    def changes(self) -> str:
        """In words: the parameters that are new, and those that are gone."""
        if self.kind != "call" or not self.found:
            return str(self)
        before, after = self.expected.split(), self.found.split()
        new = [name for name in after if name not in before]
        gone = [name for name in before if name not in after]
        moved = not new and not gone and before != after
        texts = ((new, f"new: {' '.join(new)}"), (gone, f"gone: {' '.join(gone)}"))
        return "; ".join(text for some, text in (*texts, (moved, "in another order")) if some)

    @property
    def advice(self) -> str:
        """The next step."""
        if not self.blocks and self.kind == "import":
            return "none: the configurations that need it are refused"
        if not self.blocks:
            return "none: the adapter's call still fits, what is new keeps its default"
        return _ADVICE[self.kind]


_ADVICE: dict[Kind, str] = {
    "call": "add the release and its parameters to the adapter's tables, and pass what is new",
    "attribute": "find where the release keeps it, and add that to the adapter",
    "import": "find where the release keeps it, and add that module to the adapter",
    "machine": "run it where there is one",
    "package": "install it: `pip install` in that environment, or add it to the lock file",
    "release": "install a release that the adapter was written for",
}
