"""Engine configurations in TOML: servers, requests, and limits of the comparison."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field
from msgspec.structs import replace

from kvproof.eval.run.records import PHASES, PassName
from kvproof.harness.decoding import Positive, parse_toml, read_file
from kvproof.harness.errors import UsageError
from kvproof.harness.redaction import has_password, learn_command, learn_environment

Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=31_622_400)]
Setting = str | int | float | bool


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of every configuration."""

    phases: tuple[PassName, ...] = PHASES
    order: Literal["passes", "samples"] = "passes"
    """A whole pass before the next one, or all passes of a sample before the next sample. If the
    documents together exceed the cache, only the latter ever hits."""
    concurrency: Positive = 8
    control_concurrency: Positive = 4
    """Concurrency of the control, so that its batches are composed in another way."""
    repeats: Positive = 1
    """Repeats of all passes, each on a fresh server or an emptied cache."""
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    max_tokens: Positive = 128
    """Tokens of an answer."""
    thought_tokens: Positive = 1024
    """Tokens of the first answer, if the prompts are a pair."""
    sampling: dict[str, Any] = {}
    """Further fields of every request, for example seed or chat_template_kwargs."""
    max_prompt_tokens: Annotated[int, Meta(ge=0)] = 0
    """Longer prompts lose their middle; 0: no limit."""
    tokenizer: str = ""
    """Path of a tokenizer.json, or bytes."""
    timeout: Seconds = 120.0
    """Seconds of one try at most."""
    retries: Annotated[int, Meta(ge=0, le=10)] = 2
    stream: bool = True
    """Needed for the time to the first token."""
    logprobs: bool = False
    """Request log-probabilities, for the report."""


class Judge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a comparison fails, and when it is inconclusive."""

    rule: Literal["texts", "answers", "accuracy"] = "answers"
    """`texts`, `answers`: also if more of them change than in the control pair; texts are for
    engines that promise equal ones, and `answers` allows a share `margin` of texts that change.
    `accuracy`: only if accuracy falls; for engines whose arithmetic depends on the end of a hit."""
    exact: bool = False
    """The engine promises equal bits with and without a hit: one changed text fails, without any
    allowance for near ties, if the control changes none."""
    alpha: Annotated[float, Meta(gt=0, lt=0.5)] = 0.05
    """Probability of one false alarm in the whole table."""
    margin: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    """Share of right answers, or with `texts` of texts, whose loss a pass must exclude."""
    noise: Annotated[float, Meta(ge=0, lt=0.5)] = 0.02
    """Share of samples that may flip by near ties although the control repeats itself."""
    min_hits: Share = 0.9
    """Share of samples of a warm or shared pass that must hit."""
    min_cached: Share = 0.5
    """Share of a prompt's tokens that makes a hit; a shared header alone is none."""
    max_errors: Share = 0.0
    """Largest share of samples without an answer for a verdict."""


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Synthetic samples, where no data is given."""

    samples: Positive = 48
    max_tokens: Annotated[int, Meta(ge=2000)] = 8000
    """Tokens of the longest document."""
    seed: int = 0


QUICK = Synthetic(samples=32, max_tokens=2000)
"""Samples of a quick run: enough that a loss beyond the margin of 10 % would show."""


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A running server, or the command of one."""

    base_url: str = ""
    """URL of a running one, with /v1."""
    launch: tuple[str, ...] = ()
    """Command; `{port}`, `{model}`, `{python}` and `{kvproof}` of this environment, and the names
    of settings are filled in."""
    environment: dict[str, str] = {}
    health: str = "/v1/models"
    """Path that returns 200 when the server is ready."""
    ready_within: Seconds = 600.0
    reset: str = ""
    """Path of a POST that empties the cache of a running server, before the first pass."""
    sleep: tuple[str, ...] = ()
    """POSTs that put a running server to sleep and wake it up: paths, a body after a blank."""
    other_weights: tuple[str, ...] = ()
    """POSTs that load other weights into it."""
    own_weights: tuple[str, ...] = ()
    """POSTs that load its own weights again."""
    restart: tuple[str, ...] = ()
    """Command that restarts it."""
    api_key_env: str = ""
    """Environment variable with the key."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run the engine. Settings are facts of the record, and fill in the command."""

    name: Annotated[str, Meta(pattern=r"^[\w.+-]+( [\w.+-]+)*$")]
    control: bool = False
    """The first configuration again; their difference is the engine's own noise."""
    prefix_cache: bool = True
    settings: dict[str, Setting] = {}
    arguments: tuple[str, ...] = ()
    """Appended to the command."""
    server: Server | None = None
    """Replaces the common one."""


class EvalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    model: str = ""
    """Name in requests; by default the server's model."""
    data_sha256: str = ""
    """Hash of the only data that the file allows."""
    samples: Annotated[int, Meta(ge=0)] = 0
    """Samples that are asked, spread evenly over the file; 0: all."""
    protocol: Protocol = field(default_factory=Protocol)
    judge: Judge = field(default_factory=Judge)
    synthetic: Synthetic = field(default_factory=Synthetic)
    server: Server = field(default_factory=Server)
    configuration: Annotated[tuple[Configuration, ...], Meta(min_length=2)]

    @property
    def baseline(self) -> Configuration:
        """The configuration of every comparison."""
        return self.configuration[0]

    @property
    def control(self) -> Configuration:
        """The baseline's second run."""
        return next(each for each in self.configuration if each.control)

    @property
    def others(self) -> list[Configuration]:
        """The configurations that are compared with the baseline."""
        return [each for each in self.configuration[1:] if not each.control]

    def server_of(self, configuration: Configuration) -> Server:
        """Its own server, or the common one."""
        return configuration.server or self.server


def read_config(path: Path) -> EvalConfig:
    """Read a file of configurations. Raises UsageError with the place and a legal example."""
    try:
        tree = parse_toml(read_file(path, what="the configurations", hint=_EXAMPLES))
        found = msgspec.convert(tree, EvalConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{str(path)!r}: {error}", _EXAMPLES) from error
    _hide_secrets(str(path), found)
    check_config(str(path), found)
    settled = tuple(_settled(str(path), found, each) for each in found.configuration)
    return replace(found, configuration=settled)


def _hide_secrets(path: str, found: EvalConfig) -> None:
    """Commands and variables of servers may hold secrets; an address must not."""
    for server in (found.server, *(each.server for each in found.configuration if each.server)):
        if has_password(server.base_url):
            raise UsageError(f"{path!r}: a base_url has a password", "name a variable: api_key_env")
        learn_command((*server.launch, *server.restart))
        learn_environment(server.environment)
    for each in found.configuration:
        learn_command(each.arguments)


_EXAMPLES = "docs/guides/eval.md lists all fields; ready-made files are in eval/configs"


def check_config(path: str, found: EvalConfig) -> None:
    """Refuse configurations that cannot be compared. Raises UsageError."""
    names = [each.name for each in found.configuration]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"{path!r} has two configurations {twice!r}", "names differ")
    controls = [each.name for each in found.configuration if each.control]
    if len(controls) != 1 or found.baseline.control:
        raise UsageError(
            f"{path!r} has {len(controls)} control configurations behind the first one, not one",
            'measure the noise of the engine: name = "off again", control = true',
        )
    if not found.others:
        raise UsageError(f"{path!r} compares nothing", "add a third configuration")
    phases = found.protocol.phases
    if phases[:1] != ("cold",) or phases != tuple(p for p in PHASES if p in phases):
        raise UsageError(
            f"{path!r}: phases {list(phases)} do not begin cold, or are not in order",
            f"for example phases = {list(PHASES)}",
        )


def _settled(path: str, found: EvalConfig, one: Configuration) -> Configuration:
    """A control repeats the baseline's settings; only its address may differ."""
    if not one.control:
        return one
    if one.settings or one.arguments or not one.prefix_cache:
        raise UsageError(
            f"{path!r}: the control {one.name!r} has settings of its own",
            f"it repeats {found.baseline.name!r} and takes all from there",
        )
    base = found.baseline
    return replace(base, name=one.name, control=True, server=one.server or base.server)


def with_urls(config: EvalConfig, urls: dict[str, str]) -> EvalConfig:
    """Replace commands by running servers, by name. Raises UsageError."""
    known = {each.name for each in config.configuration}
    if unknown := next((name for name in urls if name not in known), ""):
        raise UsageError(
            f"there is no configuration {unknown!r}", f"one of {', '.join(sorted(known))}"
        )
    _check_partners(config, urls)
    changed = tuple(
        replace(c, server=replace(config.server_of(c), base_url=urls[c.name], launch=()))
        if c.name in urls
        else c
        for c in config.configuration
    )
    return replace(config, configuration=changed)


def _check_partners(config: EvalConfig, urls: dict[str, str]) -> None:
    """Refuse a running server together with one that the common command would start."""
    missing = [e.name for e in config.configuration if e.name not in urls and not e.server]
    if urls and missing:
        raise UsageError(
            f"--url names {', '.join(map(repr, urls))}; {', '.join(map(repr, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} missing",
            "name a server of the same engine and model for each, without prefix cache where the "
            f'file says so: --url "{missing[0]}=http://127.0.0.1:8001/v1"',
        )


def check_servers(config: EvalConfig) -> None:
    """Refuse invalid commands before any request. Raises UsageError."""
    for each in config.configuration:
        server = config.server_of(each)
        if bool(server.launch) == bool(server.base_url):
            raise UsageError(
                f"configuration {each.name!r} needs a base_url or a launch command, one of them",
                f'for example --url "{each.name}=http://127.0.0.1:8000/v1"',
            )
        if server.launch:
            command(config, each, port=0)


def own_command() -> Path:
    """Path of this environment's kvproof."""
    return Path(sys.executable).with_name("kvproof")


_HOLE = re.compile(r"\{(\w+)\}")


def command(config: EvalConfig, one: Configuration, *, port: int) -> list[str]:
    """Fill in the launch command. Raises UsageError for an unknown name."""
    given: dict[str, Setting] = {**one.settings, "port": port}
    given |= {"python": sys.executable, "kvproof": str(own_command())}
    if config.model:
        given["model"] = config.model

    def fill(found: re.Match[str]) -> str:
        if found[1] not in given:
            raise UsageError(
                f"configuration {one.name!r}: nothing fills {found[0]} of its command",
                "give --model" if found[1] == "model" else f"add {found[1]} to its settings",
            )
        return _written(given[found[1]])

    return [_HOLE.sub(fill, part) for part in (*config.server_of(one).launch, *one.arguments)]


def _written(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
