"""`kvproof eval divergence`: hits against recomputed answers, token by token."""

from __future__ import annotations

import shlex

from msgspec.structs import replace

from kvproof.eval.divergence.material import Pairs
from kvproof.eval.divergence.records import KEY, Options, earlier
from kvproof.eval.divergence.report import TITLE
from kvproof.eval.divergence.servers import as_asked, from_urls
from kvproof.eval.run.config import EvalConfig, Server, check_servers, read_config
from kvproof.eval.run.files import stored
from kvproof.eval.run.protocol import RunSink
from kvproof.eval.run.records import read_eval
from kvproof.eval.run.runner import evaluate
from kvproof.eval.run.weights import weights_digest
from kvproof.harness.cli.actions.eval import recorded
from kvproof.harness.cli.arguments.eval import DivergenceArguments
from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.runs import new_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.eval_events import EvalStarted
from kvproof.harness.served.situations import ALL, required


def divergence(given: DivergenceArguments) -> int:
    """Measure and judge; returns the exit code. Raises UsageError."""
    options = Options(
        documents=given.documents, tokens=given.tokens, most_tokens=given.length,
        at_once=given.at_once, seed=given.seed, alpha=given.alpha, detect=given.detect,
        exact=given.exact, require=tuple(given.require or (ALL,)),
        max_time=seconds(given.max_time),
    )  # fmt: skip
    _check(options)
    required(options.require, ())
    asked = as_asked(_configured(given))
    options = replace(options, weights=weights_digest(asked.model))
    output = given.output or new_directory("eval")
    before = earlier(read_eval(output).records if (output / "run.json").exists() else ())
    salts = bool(given.url) and not given.recompute_url
    pairs = Pairs(asked, options, salts=salts, earlier=before)

    def ask(sink: RunSink) -> None:
        evaluate(asked, pairs, sink, one_model=False)

    begun = EvalStarted(benchmark=KEY, title=TITLE, lines=())
    settings = stored(divergence=options, evaluation=asked)
    return recorded(output, begun, settings, ask, resumes="unfinished")


def _configured(given: DivergenceArguments) -> EvalConfig:
    if (given.config is None) == (not given.url):
        raise UsageError(
            "give --url or --config, one of them",
            "for example --url http://127.0.0.1:8000/v1 --recompute-url http://127.0.0.1:8001/v1",
        )
    if given.config is None:
        server = Server(
            reset=given.reset, sleep=tuple(given.sleep or ()),
            other_weights=tuple(given.other_weights or ()),
            own_weights=tuple(given.own_weights or ()), restart=_words(given.restart),
            api_key_env=given.api_key_env,
        )  # fmt: skip
        controls = given.control_url or ()
        return from_urls(given.url, given.recompute_url, controls, server, model=given.model)
    if any(getattr(given, name) for name in _OF_URL):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in _OF_URL)
        raise UsageError(f"{options} belong to --url", "a file of configurations has all of that")
    read = read_config(given.config)
    asked = replace(read, model=given.model or read.model)
    check_servers(asked)
    return asked


_OF_URL = (
    "recompute_url", "control_url", "reset", "sleep", "other_weights", "own_weights", "restart",
)  # fmt: skip


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--restart: {error}", "for example 'systemctl restart vllm'") from error


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
