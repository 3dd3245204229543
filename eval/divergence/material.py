"""Pairs of answers as the material of a run: one server recomputes, others answer from their cache.

Where an engine promises bits, the base first shows that recomputed answers repeat. It recomputes
every prompt once; its answers are those that all others follow. The floor: the base again alone,
the base again along with other requests, and every further correct server that recomputes (other
chunk sizes, another batch). A judged server computes a document cold, then reads it back: the same
prompt, another question, a prompt cut inside, one cut at a border, and in the end all documents at
once.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from kvproof.eval.divergence.forced import Unanswered, answered, forced
from kvproof.eval.divergence.prompts import TEXTS, Text, cut, documents
from kvproof.eval.divergence.records import Options, Role, roles
from kvproof.eval.divergence.repeats import TIMES, Gap, gap
from kvproof.eval.run.config import Configuration, EvalConfig, Protocol, Server
from kvproof.eval.run.protocol import Asked, Exchange, Material, Request, RunSink, Stage
from kvproof.eval.run.records import Abilities, Differences, Lost, Phase, Unequal
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion_client import CompletionClient, Prompt, Reply

Key = tuple[int, Text]
"""Number of a document, and which of its prompts."""

_FIRST = 2
"""Documents that show whether recomputed answers repeat."""

_GROUP = 8
"""Documents that are computed before the first is read again: a hit follows one of another
document, and few caches are too small for so many."""

_PASSES: tuple[tuple[Phase, Text], ...] = (
    ("cold", "whole"), ("warm", "whole"), ("shared", "shared"), ("inside", "inside"),
    ("border", "border"),
)  # fmt: skip

_TOPS = (20, 5, 1, 0)
"""Likeliest tokens to ask for; servers allow at most some."""

_NO_ABILITIES = Abilities(top=None, token_ids=False, ignore_eos=False, salt=False)

_TRIES = 6
"""Each halves a prompt that the server refuses."""


def from_urls(
    judged: str, recompute: str, controls: Sequence[str], server: Server, *, model: str = ""
) -> EvalConfig:
    """Return the configurations of running servers; `server` has their common settings."""

    def at(name: str, url: str, *, cache: bool) -> Configuration:
        return Configuration(name=name, prefix_cache=cache, server=replace(server, base_url=url))

    rest = [at(f"control {n}", url, cache=False) for n, url in enumerate(controls, 1)]
    base = at("recomputed", recompute or judged, cache=False)
    return EvalConfig(model=model, configuration=(base, *rest, at("hit", judged, cache=True)))


def as_asked(config: EvalConfig) -> EvalConfig:
    """Return the settings of the requests: greedy, once, and never tried again, which would hit."""
    protocol = Protocol(timeout=config.protocol.timeout, retries=0, stream=False)
    return replace(config, protocol=protocol)


class Pairs(Material):
    """Every prompt of every document; answers after the base's are compared with it."""

    def __init__(self, config: EvalConfig, options: Options, *, salts: bool = False) -> None:
        """`salts`: the base has a cache, which a salt of its own keeps from every request."""
        self._config, self._options, self._with_salts = config, options, salts
        self._roles = roles(config)
        self._prompts: dict[Key, Prompt] = {}
        """All prompts, none before the base was asked, or where its answers do not repeat."""
        self._keys: Sequence[Key] = ()
        self._expected: dict[Key, Reply] = {}
        self._lost: set[Key] = set()
        """Prompts that the base did not answer."""
        self._role: Role = "base"
        self._able = _NO_ABILITIES
        """Role and options of the server that is asked."""
        self._name, self._salts = secrets.token_hex(4), itertools.count()
        """Both make a salt that no other request has, also of an earlier run."""
        self._neutral = True
        """Answers do not depend on a salt, as far as is known."""

    @property
    def count(self) -> int:
        """Number of prompts."""
        return len(self._keys)

    def order(self, config: EvalConfig) -> Iterator[Configuration]:
        """Return the base, and unless it failed the controls and the judged configurations."""
        yield config.baseline
        if self._keys and len(self._expected) + len(self._lost) == len(self._keys):
            for role in ("control", "judged"):
                yield from (e for e in config.configuration if self._roles[e.name] == role)

    def meet(self, one: Configuration, client: CompletionClient, sink: RunSink) -> Abilities:
        """Learn the server's options; the base also gets the documents. Raises UsageError."""
        self._role, self._able = self._roles[one.name], learned(client)
        if self._role == "base":
            self._check_salts(client)
            sink.progress(f"{one.name}: drawing documents", 0, 0)
            self._draw(client)
            if self._options.exact and not self._repeats(client, one.name, sink):
                self._prompts = {}
            self._keys = tuple(self._prompts)
        return self._able

    def begin(self, configuration: str, protocol: Protocol) -> Iterator[Stage]:
        """Return the passes of a configuration, later ones without prompts that the base lost."""
        del protocol  # each pass has its own concurrency
        at_once, role = self._options.at_once, self._roles[configuration]
        if role == "judged":
            yield self._stage(self._read_back(), 1)
            yield self._stage((("together", key) for key in self._of("whole")), at_once)
            return
        if role == "base":
            yield self._stage((("recomputed", key) for key in self._keys), 1)
        yield from self._floor("again", 1)
        if role == "base":
            yield from self._floor("together", at_once)

    def _floor(self, phase: Phase, at_once: int) -> Iterator[Stage]:
        """One kind of prompt after the other, so that simultaneous ones share no document."""
        for text in TEXTS:
            yield self._stage(((phase, key) for key in self._of(text)), at_once)

    def _read_back(self) -> Iterator[tuple[Phase, Key]]:
        """Fill and read the cache in groups of documents."""
        for at in range(0, self._options.documents, _GROUP):
            for phase, text in _PASSES:
                yield from ((phase, key) for key in self._of(text) if 0 <= key[0] - at < _GROUP)

    def _of(self, text: Text) -> Iterator[Key]:
        return (key for key in self._keys if key[1] == text)

    def _stage(self, asked: Iterable[tuple[Phase, Key]], at_once: int) -> Stage:
        number = {key: n for n, key in enumerate(self._keys) if key not in self._lost}
        jobs = [(Request(phase, number[key]),) for phase, key in asked if key in number]
        return Stage(jobs, at_once)

    def sample(self, request: Request) -> Asked:
        """Document and text of a request."""
        number, text = self._keys[request.number]
        return Asked(id=str(number), domain=text)

    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Recompute a prompt for all others, or follow its recomputed answer."""
        del protocol  # answers have the length of the options
        key = self._keys[request.number]
        sent = msgspec.json.encode(self._prompts[key])
        try:
            if request.phase != "recomputed":
                return self._followed(client, key, sent)
            reply = self._recomputed(client, self._prompts[key], self._options.tokens)
        except Unanswered as error:
            if request.phase == "recomputed":
                self._lost.add(key)
            return Exchange(sent, error.reply)
        self._expected[key] = reply
        return Exchange(sent, reply)

    def _followed(self, client: CompletionClient, key: Key, sent: bytes) -> Exchange:
        judged, expected = self._role == "judged", self._expected[key]
        ask = partial(self._answer if judged else self._recomputed, client)
        begun = time.monotonic()
        found = forced(ask, self._prompts[key], expected)
        differences = Differences(
            control=not judged,
            expected_cached=expected.usage.cached_tokens,
            places=tuple(at for at, _ in found.places),
            largest=tuple(each.largest for _, each in found.places),
            kl=tuple(each.kl for _, each in found.places),
            flips=found.flips,
            left=found.left,
            requests=found.requests,
        )
        reply = found.first._replace(seconds=time.monotonic() - begun)
        return Exchange(sent, reply, differences=differences)

    def extract(self, request: Request, text: str) -> None:
        """No answer is right by itself."""

    # --- one request ---

    def _answer(
        self, client: CompletionClient, prompt: Prompt, tokens: int, *, salt: str = ""
    ) -> Reply:
        """Complete greedily; a `salt` keeps cached blocks of other salts out of reach."""
        able = self._able
        asked = {
            "logprobs": able.top,
            "return_token_ids": able.token_ids or None,
            "ignore_eos": able.ignore_eos or None,
            "cache_salt": salt or None,
        }
        fields = {name: value for name, value in asked.items() if value is not None}
        return answered(client.complete(prompt, max_tokens=tokens, **fields))

    def _recomputed(self, client: CompletionClient, prompt: Prompt, tokens: int) -> Reply:
        return self._under(client, prompt, tokens, self._salt())

    def _salt(self) -> str:
        """Return a new salt; empty where something else recomputes."""
        salted = self._with_salts and self._able.salt and self._neutral
        return f"kvproof {self._name} {next(self._salts)}" if salted else ""

    def _under(self, client: CompletionClient, prompt: Prompt, tokens: int, salt: str) -> Reply:
        if self._with_salts and not salt and self._reset:
            try:
                client.post(self._reset)
            except OSError as error:
                hint = "for example --reset /reset_prefix_cache"
                raise UsageError(f"--reset: {error}", hint) from error
        return self._answer(client, prompt, tokens, salt=salt)

    # --- the base, before its passes ---

    @property
    def _reset(self) -> str:
        return self._config.server_of(self._config.baseline).reset

    def _check_salts(self, client: CompletionClient) -> None:
        if self._with_salts and not self._able.salt and not self._reset:
            raise UsageError(
                f"{client.url} takes no cache_salt, so that nothing can be recomputed beside its "
                "cache",
                "give a server without prefix cache with --recompute-url, or --reset PATH",
            )

    def _draw(self, client: CompletionClient) -> None:
        made = documents(
            self._options.documents,
            most_tokens=self._options.most_tokens,
            seed=self._options.seed,
            tokenize=partial(self._tokenized, client),
        )
        self._prompts = {
            (each.number, text): prompt for each in made for text, prompt in each.prompts.items()
        }

    def _tokenized(self, client: CompletionClient, text: str) -> Prompt:
        """Return the ids of a text, or the text; one that is too long loses its middle."""
        refused = ""
        for _ in range(_TRIES):
            try:
                return self._recomputed(client, text, 1).prompt_ids or text
            except Unanswered as error:
                refused, text = str(error), str(cut(text, len(text) // 2))
        raise UsageError(f"{client.url} answers no prompt: {refused}", "does it serve completions?")

    def _repeats(self, client: CompletionClient, name: str, sink: RunSink) -> bool:
        """Return whether recomputed answers repeat; a reset may replace salts that change them."""
        sink.progress(f"{name}: whether recomputed answers repeat", 0, 0)
        found = self._gap(client, name, sink)
        if found and found.cause == "salt" and self._reset:
            self._neutral = False
            found = self._gap(client, name, sink)
        if found:
            sink.write(Unequal(configuration=name, cause=found.cause, largest=found.largest))
        return not found

    def _gap(self, client: CompletionClient, name: str, sink: RunSink) -> Gap | None:
        for number in range(min(_FIRST, self._options.documents)):
            prompt = self._prompts[number, "whole"]
            ask = partial(self._under, client, prompt, self._options.tokens)
            try:
                if found := gap(ask, [self._salt() for _ in range(TIMES)]):
                    return found
            except Unanswered as error:
                sink.write(Lost(configuration=name, message=str(error)))
        return None


def learned(client: CompletionClient) -> Abilities:
    """Try some requests of one token to learn a server's options. Raises UsageError."""

    def taken(**fields: object) -> Reply | None:
        found = client.complete("a", max_tokens=1, **fields)
        return found if found.outcome == "answered" else None

    try:
        answered(client.complete("a", max_tokens=1))
    except Unanswered as error:
        raise UsageError(
            f"{client.url} completes nothing: {error}",
            "a server with /v1/completions; --model names its model",
        ) from error
    scored = (top for top in _TOPS if (found := taken(logprobs=top)) and found.logprobs)
    ids = taken(return_token_ids=True)
    return Abilities(
        top=next(scored, None),
        token_ids=bool(ids and ids.prompt_ids),
        ignore_eos=taken(ignore_eos=True) is not None,
        salt=taken(cache_salt="kvproof") is not None,
    )
