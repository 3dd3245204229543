"""`kvproof explain`."""

from __future__ import annotations

from pathlib import Path


def explain(record: Path, /, *, request: str | None = None) -> None:
    """Explain the hit length of each recorded request, and its limits.

    Parameters
    ----------
    record
        The op log of a failure or of the corpus, replayed on the reference; or the directory of
        a run of kvproof bench with the reference; or a recording of kvproof record.
    request
        Only the requests of this name.

    """
    from kvproof.harness.cli.actions import explain as action

    action.explain(record, request=request)
