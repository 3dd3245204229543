"""Options of `kvproof probe`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.options import Output

KEY = "KVPROOF_PROBE_KEY"


@dataclass(frozen=True, kw_only=True)
class ProbeArguments:
    """Options of the verb; each attribute docstring is the help text."""

    model: str = ""
    """Name in requests; the first one that the server lists by default."""
    against: str = ""
    """Address of a server of the same model without prefix caching, to compare answers with."""
    api_key: Annotated[str, Parameter(env_var=KEY, show_env_var=True)] = ""
    """Bearer token; from the variable or a file, never in the command."""
    api_key_file: Path | None = None
    """File with the token in its first line."""
    depths: str = ""
    """Lengths of long prompts in tokens, for example 1k,8k,32k,128k; 1k and 4k by default."""
    trace: Path | None = None
    """Recorded requests in the Mooncake format (JSON Lines, also .gz): replay them at their pace,
    and judge what neighbours change and delay, in place of the usual checks."""
    pace: float = 1.0
    """How much faster than recorded the trace is replayed."""
    chunk: int = 0
    """Most tokens of a step of the server, if it computes long prompts in chunks: with --trace a
    short request may wait for eight of them. 0: not known."""
    max_requests: int = 3000
    """Most requests that it completes or cancels."""
    max_time: str = "10m"
    """Time limit of the whole probe, for example 90s or 10m."""
    timeout: str = "60s"
    """Time limit of one request."""
    tolerance: float = 0.2
    """Largest change of a log-probability by reuse, where kernels add in another order."""
    output: Output = None
    """Directory of the run's records and reports."""
