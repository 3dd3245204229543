"""What the adapter of vLLM's loop needs of a release, compared without an engine."""

from __future__ import annotations

from pathlib import Path

from kvproof.harness.adapters.vllm_engine import drift

SOURCE = """
from vllm.needed import name
try:
    from vllm.new import either
except ImportError:
    from vllm.old import either
"""


def test_names_that_releases_have_in_two_places_are_not_demanded(tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(SOURCE)
    assert list(drift._imports(file)) == [("vllm.needed", "name")]


def test_a_name_that_only_a_part_needs_is_not_in_the_way() -> None:
    found = drift._missing("json", "no_such_name", blocks=False)
    assert found is not None
    assert not found.blocks
    assert found.advice == "none: the configurations that need it are refused"
    needed = drift._missing("json", "no_such_name", blocks=True)
    assert needed is not None
    assert needed.blocks


def test_a_hook_that_is_gone_is_named() -> None:
    found = drift._hookless("json.JSONDecoder", "sample_tokens")
    assert str(found) == "json.JSONDecoder has no attribute sample_tokens"
    assert drift._hookless("json.JSONDecoder", "decode") is None
