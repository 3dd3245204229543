"""The proof of a finding's patch, as `proof.json` in the finding's folder has it."""

from __future__ import annotations

from typing import Final

import msgspec

PATCH: Final = "fix.patch"
PROOF: Final = "proof.json"
SHOWN: Final = "shows it"
GONE: Final = "does not show it"


class Sides(msgspec.Struct, frozen=True):
    """One question, asked of both."""

    released: str
    patched: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that a patch changes."""

    target: str
    patch: str
    """SHA-256 of the diff."""
    history: Sides | None
    """Outcome of the replay, `FAILED by <property>` or `FIXED`; None: there is no history."""
    script: Sides
    """Whether the finding's script `shows it`, or `does not show it`.

    One that makes the engine's calls itself shows it on both."""
    budget: str
    """Budget of the suites, at level full."""
    held: int
    """Properties that hold in the patched engine."""
    green: list[str]
    """Properties that failed as known in the release, and hold in the patched engine."""
    known: list[str]
    """Properties that still fail by other known failures."""
    red: dict[str, str]
    """Property that is red in the patched engine and not in the release -> reason."""

    @property
    def mended(self) -> bool:
        """Whether what shows the bug in the release shows it no longer: its history, or script."""
        sides = self.history or self.script
        return sides.released != sides.patched

    @property
    def whole(self) -> bool:
        """Whether the bug is gone, and nothing else is red."""
        fixed = self.history is None or self.history.patched == "FIXED"
        return self.mended and fixed and not self.red
