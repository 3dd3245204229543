"""What a store filled: a fact for known failures."""

from __future__ import annotations

from typing import Any

from kvproof.harness.whole_engine.device import ShadowDevice


def note_filled(device: ShadowDevice, blocks: Any) -> None:
    """Note block -> launches until now, for blocks that a store fills; a later launch may write."""
    noted = device.findings.context.setdefault("filled_by_a_store", {})
    assert isinstance(noted, dict)
    noted.update(dict.fromkeys(map(str, blocks.tolist()), device.submitted))
