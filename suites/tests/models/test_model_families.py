"""A config.json with odd architectures is refused, whatever stands there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the extra hf is not installed")
from kvproof.reference.model_runner.families import UnsupportedModel, check_family


@pytest.mark.parametrize("architectures", [1.5, [1.5, None], {"a": 1}, None, "x", [[]]])
def test_odd_architectures_are_refused(architectures: object) -> None:
    """A number was an AttributeError."""
    config = SimpleNamespace(
        model_type="llama", is_encoder_decoder=False, architectures=architectures
    )
    with pytest.raises(UnsupportedModel, match="generates no text"):
        check_family(config)
