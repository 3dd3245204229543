"""`kvproof eval divergence`: hits against recomputed answers, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from kvproof.eval.divergence.protocol import Plan, from_urls, run
from kvproof.eval.divergence.records import KEY, Options, stored
from kvproof.eval.divergence.report import TITLE
from kvproof.eval.run.config import Server, check_servers, read_config
from kvproof.harness.cli.actions.eval import recorded
from kvproof.harness.cli.runs import new_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.eval_events import EvalStarted


def divergence(
    *,
    config: Path | None,
    url: str,
    recompute_url: str,
    control_url: Sequence[str],
    reset: str,
    api_key_env: str,
    model: str,
    options: Options,
    output: Path | None,
) -> int:
    """Measure and judge; returns the exit code. Raises UsageError."""
    _check(options)
    if (config is None) == (not url):
        raise UsageError(
            "give --url or --config, one of them",
            "for example --url http://127.0.0.1:8000/v1 --recompute-url http://127.0.0.1:8001/v1",
        )
    if config is not None:
        if recompute_url or control_url or reset:
            raise UsageError(
                "--recompute-url, --control-url and --reset belong to --url",
                "a file of configurations has all of that",
            )
        read = read_config(config)
        plan = Plan(replace(read, model=model or read.model))
        check_servers(plan.config)
    else:
        server = Server(reset=reset, api_key_env=api_key_env)
        plan = from_urls(url, recompute_url, control_url, server, model=model)
    begun = EvalStarted(benchmark=KEY, title=TITLE, lines=())
    directory = output or new_directory("eval")
    return recorded(directory, begun, stored(options), partial(run, plan, options))


def _check(options: Options) -> None:
    for name, value, least, most in (
        ("documents", options.documents, 1, 100_000),
        ("tokens", options.tokens, 1, 4096),
        ("at-once", options.at_once, 1, 256),
        ("length", options.most_tokens, 16, 10_000_000),
    ):
        if not least <= value <= most:
            raise UsageError(f"--{name} {value} is not from {least} to {most}", "for example 8")
    for name, share in (("alpha", options.alpha), ("detect", options.detect)):
        if not 0 < share < 0.5:
            raise UsageError(f"--{name} {share:g} is not between 0 and 0.5", "for example 0.05")
