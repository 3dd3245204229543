"""Passes of a run: one server recomputes and sets the floor, others are judged from their cache.

Where an engine promises bits, the base first shows that recomputed answers repeat. It recomputes
every prompt once; its answers are those that all others follow. The floor: the base again alone,
the base again along with other requests, and every further correct server that recomputes (other
chunk sizes, another batch). A judged server computes a document cold, then reads it back: the same
prompt, another question, a prompt cut inside, one cut at a border, and in the end all documents at
once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from kvproof.eval.divergence.client import Answer, CompletionClient, Prompt, Refused
from kvproof.eval.divergence.forced import forced
from kvproof.eval.divergence.prompts import TEXTS, Document, Text, cut, documents
from kvproof.eval.divergence.records import (
    Lost,
    Measured,
    Options,
    Pass,
    Role,
    Served,
    Unequal,
)
from kvproof.eval.divergence.repeats import TIMES, Gap, gap
from kvproof.eval.run.config import Configuration, EvalConfig, Server
from kvproof.eval.run.records import ServerDied, asked_as
from kvproof.eval.run.runner import RunSink, server_record
from kvproof.eval.run.server import Serving, key_of, serving
from kvproof.eval.run.weights import weights_digest
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.supervised import Died

Key = tuple[int, Text]

_FIRST = 2
"""Documents that show whether recomputed answers repeat."""

_GROUP = 8
"""Documents that are computed before the first is read again: a hit follows one of another
document, and few caches are too small for so many."""

_PASSES: tuple[tuple[Pass, Text], ...] = (
    ("cold", "whole"), ("warm", "whole"), ("shared", "shared"), ("inside", "inside"),
    ("border", "border"),
)  # fmt: skip


class Plan(NamedTuple):
    """Servers of a run."""

    config: EvalConfig
    """The first configuration recomputes; the control and all without a prefix cache do so once
    more; the rest is judged."""
    salts: bool = False
    """The base is a server with a cache, which a salt of its own keeps from every request."""


def from_urls(
    judged: str, recompute: str, controls: Sequence[str], server: Server, *, model: str = ""
) -> Plan:
    """Return the plan for running servers; `server` has their common settings."""

    def at(name: str, url: str, *, cache: bool) -> Configuration:
        return Configuration(name=name, prefix_cache=cache, server=replace(server, base_url=url))

    rest = [at(f"control {n}", url, cache=False) for n, url in enumerate(controls, 1)]
    base = at("recomputed", recompute or judged, cache=False)
    made = EvalConfig(model=model, configuration=(base, *rest, at("hit", judged, cache=True)))
    return Plan(made, salts=not recompute)


def run(plan: Plan, options: Options, sink: RunSink) -> None:
    """Run all passes. Raises UsageError for a server that cannot be used."""
    found = _Run(plan, options, sink)
    base, *rest = plan.config.configuration
    controls = [each for each in rest if each.control or not each.prefix_cache]
    judged = [each for each in rest if each not in controls]
    try:
        with found.server(base, "base") as client:
            if not found.base(client, base.name):
                return
    except Died as death:
        sink.write(ServerDied(configuration=base.name, message=str(death), log=death.log))
        return
    for one in (*controls, *judged):
        _other(found, one, sink, control=one in controls)


def _other(found: _Run, one: Configuration, sink: RunSink, *, control: bool) -> None:
    try:
        with found.server(one, "control" if control else "judged") as client:
            if control:
                found.control(client, one.name)
            else:
                found.judged(client, one.name)
    except Died as death:
        sink.write(ServerDied(configuration=one.name, message=str(death), log=death.log))


class _Run:
    def __init__(self, plan: Plan, options: Options, sink: RunSink) -> None:
        self._plan, self._options, self._sink = plan, options, sink
        self._weights = weights_digest(plan.config.model)
        self._expected: dict[Key, Answer] = {}
        self._documents: list[Document] = []
        self._salts = itertools.count()
        self._neutral = True
        """Answers do not depend on a salt, as far as is known."""
        self._check: Callable[[], None] = lambda: None
        self._done = 0
        self._total = 0

    # --- servers ---

    @contextmanager
    def server(self, one: Configuration, role: Role) -> Iterator[CompletionClient]:
        """Yield a client of a configuration's server, once that is ready; a record names it."""
        self._sink.progress(f"{one.name}: waiting for the server", self._done, self._total)
        log = self._sink.logs / f"{one.name.replace(' ', '_')}.log"
        with serving(self._plan.config, one, log) as found:
            self._check = found.check
            yield self._client(one, role, found)

    def _client(self, one: Configuration, role: Role, found: Serving) -> CompletionClient:
        server = self._plan.config.server_of(one)
        record = server_record(one.name, found)
        model = asked_as(self._plan.config.model, record)
        client = CompletionClient(
            found.url, model=model, key=key_of(server), reset=server.reset,
            timeout=self._plan.config.protocol.timeout,
        )  # fmt: skip
        self._sink.write(
            Served(
                configuration=one.name, role=role, url=found.url, model=model,
                abilities=client.learn(), command=found.command,
                engine=found.engine, version=found.version,
                weights=self._weights,
            )
        )  # fmt: skip
        return client

    # --- passes ---

    def base(self, client: CompletionClient, name: str) -> bool:
        """Recompute everything, twice more for the floor; returns whether anything can be judged.

        Raises UsageError.
        """
        if self._plan.salts and not client.abilities.salt and not client.can_reset:
            raise UsageError(
                f"{client.url} takes no cache_salt, so that nothing can be recomputed beside its "
                "cache",
                "give a server without prefix cache with --recompute-url, or --reset PATH",
            )
        self._draw(client, name)
        if self._options.exact and not self._repeats(client, name):
            return False
        self._count()
        for key, prompt in self._prompts():
            try:
                self._expected[key] = self._recomputing(client)(prompt, self._options.tokens)
            except Refused as error:
                self._lost(name, error)
            self._step(name)
        for control in (False, True):
            self._floor(client, name, beside=control)
        return True

    def _draw(self, client: CompletionClient, name: str) -> None:
        self._sink.progress(f"{name}: drawing documents", 0, 0)
        options = self._options
        made = documents(
            options.documents,
            most_tokens=options.most_tokens,
            seed=options.seed,
            tokenize=partial(_tokenized, self._recomputing(client), client.url),
        )
        self._documents = list(made)

    def _repeats(self, client: CompletionClient, name: str) -> bool:
        """Return whether recomputed answers repeat; a reset may replace salts that change them."""
        self._sink.progress(f"{name}: whether recomputed answers repeat", 0, 0)
        found = self._gap(client, name)
        if found and found.cause == "salt" and client.can_reset:
            self._neutral = False
            found = self._gap(client, name)
        if found:
            self._sink.write(Unequal(configuration=name, cause=found.cause, largest=found.largest))
        return not found

    def _gap(self, client: CompletionClient, name: str) -> Gap | None:
        for document in self._documents[:_FIRST]:
            ask = partial(self._recompute, client, document.prompts["whole"], self._options.tokens)
            salts = [self._salt(client) for _ in range(TIMES)]
            try:
                if found := gap(ask, salts):
                    return found
            except Refused as error:
                self._lost(name, error)
        return None

    def _count(self) -> None:
        prompts = len(list(self._prompts()))
        rest = self._plan.config.configuration[1:]
        controls = sum(each.control or not each.prefix_cache for each in rest)
        own = prompts + 2 * len(self._documents)
        self._total = prompts * (3 + controls) + own * (len(rest) - controls)

    def control(self, client: CompletionClient, name: str) -> None:
        """Recompute everything on another correct server."""
        self._floor(client, name, beside=False)

    def _floor(self, client: CompletionClient, name: str, *, beside: bool) -> None:
        """Ask one kind of prompt after the other, so that simultaneous ones share no document."""
        phase: Pass = "together" if beside else "again"
        for text in TEXTS:
            keys = [(n, t) for (n, t), _ in self._prompts() if t == text]
            ask = self._recomputing(client)
            jobs = [partial(self._measure, ask, name, phase, key, control=True) for key in keys]
            self._all(jobs, self._options.at_once if beside else 1, name)

    def judged(self, client: CompletionClient, name: str) -> None:
        """Fill and read the cache in groups of documents, then read everything at once."""

        def ask(prompt: Prompt, tokens: int) -> Answer:
            return client.ask(prompt, tokens=tokens)

        for at in range(0, len(self._documents), _GROUP):
            for phase, text in _PASSES:
                for document in self._documents[at : at + _GROUP]:
                    if text in document.prompts:
                        self._measure(ask, name, phase, (document.number, text))
                        self._step(name)
        jobs = [
            partial(self._measure, ask, name, "together", (each.number, "whole"))
            for each in self._documents
        ]
        self._all(jobs, self._options.at_once, name)

    # --- one request ---

    def _prompts(self) -> Iterator[tuple[Key, Prompt]]:
        for document in self._documents:
            for text, prompt in document.prompts.items():
                yield (document.number, text), prompt

    def _salt(self, client: CompletionClient) -> str:
        """Return a new salt; empty where something else recomputes."""
        salted = self._plan.salts and client.abilities.salt and self._neutral
        return f"kvproof {next(self._salts)}" if salted else ""

    def _recompute(
        self, client: CompletionClient, prompt: Prompt, tokens: int, salt: str
    ) -> Answer:
        if self._plan.salts and not salt:
            client.empty()
        return client.ask(prompt, tokens=tokens, salt=salt)

    def _recomputing(self, client: CompletionClient) -> Callable[[Prompt, int], Answer]:
        def ask(prompt: Prompt, tokens: int) -> Answer:
            return self._recompute(client, prompt, tokens, self._salt(client))

        return ask

    def _measure(
        self,
        ask: Callable[[Prompt, int], Answer],
        name: str,
        phase: Pass,
        key: Key,
        *,
        control: bool = False,
    ) -> None:
        expected = self._expected.get(key)
        if expected is None:
            return
        begun = time.monotonic()
        number, text = key
        try:
            found = forced(ask, self._documents[number].prompts[text], expected)
        except Refused as error:
            self._lost(name, error)
            return
        first = found.first.usage
        self._sink.write(
            Measured(
                configuration=name,
                control=control,
                phase=phase,
                text=text,
                number=number,
                prompt_tokens=first.prompt_tokens,
                cached_tokens=first.cached_tokens,
                expected_cached=expected.usage.cached_tokens,
                places=tuple(at for at, _ in found.places),
                largest=tuple(each.largest for _, each in found.places),
                kl=tuple(each.kl for _, each in found.places),
                flips=found.flips,
                left=found.left,
                requests=found.requests,
                seconds=round(time.monotonic() - begun, 6),
            )
        )

    def _lost(self, name: str, error: Refused) -> None:
        self._check()
        self._sink.write(Lost(configuration=name, message=str(error)))

    def _all(self, jobs: Sequence[Callable[[], None]], at_once: int, name: str) -> None:
        with ThreadPoolExecutor(at_once) as pool:
            try:
                for each in [pool.submit(job) for job in jobs]:
                    each.result()
                    self._step(name)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _step(self, name: str) -> None:
        self._done += 1
        self._sink.progress(name, self._done, self._total)


def _tokenized(ask: Callable[[Prompt, int], Answer], url: str, text: str) -> Prompt:
    """Return the ids of a text, or the text; one that is too long loses its middle."""
    refused = Refused()
    for _ in range(_TRIES):
        try:
            ids = ask(text, 1).prompt_ids
        except Refused as error:
            refused, text = error, str(cut(text, len(text) // 2))
        else:
            return ids or text
    raise UsageError(f"{url} answers no prompt: {refused}", "does it serve completions?")


_TRIES = 6
"""Each halves a prompt that the server refuses."""
