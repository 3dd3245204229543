"""`kvproof probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

KEY = "KVPROOF_PROBE_KEY"


def probe(
    url: str,
    /,
    *,
    model: str = "",
    against: str = "",
    api_key: Annotated[str, Parameter(env_var=KEY, show_env_var=True)] = "",
    api_key_file: Path | None = None,
    depths: str = "",
    max_requests: int = 1500,
    max_time: str = "10m",
    timeout: str = "60s",
    tolerance: float = 0.2,
    output: Annotated[Path | None, Parameter("--output")] = None,
) -> int:
    """Test a running server from outside: counts, answers and leaks.

    Parameters
    ----------
    url
        Address of the API, for example http://127.0.0.1:8000/v1.
    model
        Name in requests; the first one that the server lists by default.
    against
        Address of a server of the same model without prefix caching, to compare answers with.
    api_key
        Bearer token; from the variable or a file, never in the command.
    api_key_file
        File with the token in its first line.
    depths
        Lengths of long prompts in tokens, for example 1k,8k,32k,128k; 1k and 4k by default.
    max_requests
        Most requests that it completes or cancels.
    max_time
        Time limit of the whole probe, for example 90s or 10m.
    timeout
        Time limit of one request.
    tolerance
        Largest change of a log-probability by reuse, where kernels add in another order.
    output
        Directory of the run's records and reports.

    """
    from kvproof.harness.cli.actions import probe as action
    from kvproof.harness.cli.secrets import read_secret

    return action.probe(
        url,
        model=model,
        against=against,
        api_key=read_secret("--api-key-file", api_key_file) or api_key,
        depths=depths,
        max_requests=max_requests,
        max_time=max_time,
        timeout=timeout,
        tolerance=tolerance,
        output=output,
    )
