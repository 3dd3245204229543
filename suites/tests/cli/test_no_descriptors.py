"""A refusal is printed in any case."""

from __future__ import annotations

import pytest

from kvproof.harness.cli import app
from kvproof.harness.errors import Exit


def test_a_refusal_is_printed_where_nothing_more_can_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback: rich imports its tables late."""

    def no_descriptor(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(app, "_errors", no_descriptor)
    with pytest.raises(SystemExit) as ended:
        app.main(["run", "--budget", "\x1bx"])
    assert ended.value.code == Exit.USAGE
    found = capsys.readouterr().err
    assert found.startswith("kvproof: ")
    assert "\x1b" not in found
