"""Pairs of answers as the material of a run: one server recomputes, others answer from their cache.

Where an engine promises bits, the base first shows that recomputed answers repeat. It recomputes
every prompt once; its answers are those that all others follow. The floor: the base again alone,
the base again along with other requests, and every further correct server that recomputes (other
chunk sizes, another batch). A judged server computes a document cold, then reads it back: the same
prompt, another question, a prompt cut inside, one cut at a border, and in the end all documents at
once. Then a course of scenes brings it into all situations that are required.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from kvproof.eval.divergence.chats import Chat, Question, image_scene
from kvproof.eval.divergence.course import WRITTEN, Course, Key, Step, Steps, steps_of
from kvproof.eval.divergence.forced import Unanswered, forced
from kvproof.eval.divergence.orders import Life, Order, orders
from kvproof.eval.divergence.prompts import TEXTS, Text, cut, documents
from kvproof.eval.divergence.records import NOTHING, Earlier, Options, Role, roles
from kvproof.eval.divergence.repeats import TIMES, Gap, apart, gap
from kvproof.eval.divergence.scenes import ANSWER, ROOM, Scene, flood, joined, scenes
from kvproof.eval.divergence.sender import PLAIN, Sender, written
from kvproof.eval.divergence.servers import TRIED, learned, longest_prompt, means_of
from kvproof.eval.run.config import Configuration, EvalConfig, Protocol
from kvproof.eval.run.protocol import Asked, Exchange, Material, Request, RunSink, Stage
from kvproof.eval.run.records import Abilities, Differences, Lost, Phase, Unequal
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion_client import CompletionClient, Prompt, Reply
from kvproof.harness.served.request_log import RequestLog, Sighting
from kvproof.harness.served.situations import ALL, Means, doable, required, tried

_FIRST = 2
"""Documents that show whether recomputed answers repeat."""

_GROUP = 8
"""Documents that are computed before the first is read again: a hit follows one of another
document, and few caches are too small for so many."""

_PASSES: tuple[tuple[Phase, Text], ...] = (
    ("cold", "whole"), ("warm", "whole"), ("shared", "shared"), ("inside", "inside"),
    ("border", "border"),
)  # fmt: skip

_TRIES = 6
"""Each halves a prompt that the server refuses."""

_SCENE: tuple[Text, ...] = ("begun", "continued", "elsewhere")

_BASE = 0.5
"""Share of the time that recomputing for scenes may take."""


class Pairs(Material):
    """Every prompt of every document; answers after the base's are compared with it."""

    def __init__(
        self, config: EvalConfig, options: Options, *, salts: bool = False,
        earlier: Earlier = NOTHING,
    ) -> None:  # fmt: skip
        """`salts`: the base has a cache, which a salt of its own keeps from every request."""
        self._config, self._options, self._with_salts = config, options, salts
        self._server = config.server_of(config.baseline)
        self._sender = Sender(salts=salts, reset=self._server.reset)
        self._earlier, self._seed = earlier, options.seed + earlier.first
        self._numbers = range(earlier.first, earlier.first + options.documents)
        self._roles = roles(config)
        self._prompts: dict[Key, Question] = {}
        """All prompts, none before the base was asked, or where its answers do not repeat."""
        self._keys: Sequence[Key] = ()
        self._expected: dict[Key, Reply] = {}
        self._lost: set[Key] = set()
        """Prompts that the base did not answer."""
        self._role: Role = "base"
        """Role of the server that is asked."""
        self._scenes: list[Scene] = []
        self._steps: list[Step] = []
        """All requests of passes, by the number of their record."""
        self._wanted: frozenset[str] = frozenset()
        """Situations that are brought about."""
        self._client: CompletionClient | None = None
        self._floods = itertools.count(1)
        self._begun = time.monotonic()
        self._longest = 0
        """Tokens of the longest prompt with its answer."""
        self._complete = False
        """The base was asked everything."""

    @property
    def count(self) -> int:
        """Number of prompts."""
        return len(self._keys)

    def order(self, config: EvalConfig) -> Iterator[Configuration]:
        """Return the base, and unless it failed the controls and the judged configurations."""
        yield config.baseline
        if self._complete and self._keys:
            for role in ("control", "judged"):
                yield from (e for e in config.configuration if self._roles[e.name] == role)

    def meet(self, one: Configuration, client: CompletionClient, sink: RunSink) -> Abilities:
        """Learn the server's options; the base also gets the documents. Raises UsageError."""
        self._role, self._client, sender = self._roles[one.name], client, self._sender
        sender.able = learned(client)
        if self._role == "base":
            self._check_salts(client)
            sink.progress(f"{one.name}: drawing documents", 0, 0)
            self._draw(client)
            self._draw_scenes(client)
            if self._options.exact and not self._repeats(client, one.name, sink):
                self._prompts, self._scenes = {}, []
            self._keys = tuple(self._prompts)
        sender.able = replace(sender.able, longest=self._longest, means=self._means(client))
        return sender.able

    def planned(self, configuration: str, protocol: Protocol) -> int:
        """Count the prompts about documents; scenes add some."""
        del protocol  # each pass has its own concurrency
        passes = 2 if self._roles[configuration] == "control" else 4
        return passes * len(self._keys)

    def begin(self, configuration: str, protocol: Protocol) -> Iterator[Stage]:
        """Return the passes of a configuration, later ones without prompts that the base lost."""
        del protocol  # each pass has its own concurrency
        role = self._roles[configuration]
        passes = {"base": self._base, "control": self._again, "judged": self._judged}[role]()
        for steps, at_once in passes:
            jobs = [(self._request(step),) for step in steps if step.key not in self._lost]
            yield Stage(jobs, at_once)

    def _request(self, step: Step) -> Request:
        self._steps.append(step)
        return Request(step.phase, len(self._steps) - 1)

    def _base(self) -> Iterator[Steps]:
        yield Steps(steps_of("recomputed", self._keys))
        yield from self._recomputed_scenes()
        yield from self._again()
        for text in TEXTS:
            yield Steps(steps_of("together", self._of(text)), self._options.at_once)
        self._complete = True

    def _again(self) -> Iterator[Steps]:
        """One kind of prompt after the other, so that simultaneous ones share no document.

        Scenes have one prompt instead of four, so it is recomputed once more.
        """
        for text in (*TEXTS, "continued"):
            yield Steps(steps_of("again", self._of(text)))

    def _recomputed_scenes(self) -> Iterator[Steps]:
        """Recompute scenes, the cheapest kind first, until half of the time is over."""
        kept: list[Scene] = []
        for _, group in itertools.groupby(self._scenes, lambda each: each.kind):
            found = list(group)
            if not self._left(_BASE):
                break
            begun = [
                Step("recomputed", (e.number, "begun"), tokens=ANSWER * (e.kind == "turn"))
                for e in found
                if e.kind in ("turn", "twin", "salt", "adapter")
            ]
            yield Steps(begun)
            others: list[Key] = [(each.number, "elsewhere") for each in found]
            yield Steps(steps_of("recomputed", filter(self._prompts.__contains__, others)))
            for each in found if found[0].kind != "image" else ():
                answer = self._expected.get((each.number, "begun"))
                prompt = each.continued(written(each.begun, answer) if answer else ())
                self._prompts[each.number, "continued"] = prompt
            yield Steps([Step("recomputed", (e.number, "continued")) for e in found])
            kept += found
        self._scenes = kept
        keys = ((each.number, text) for each in kept for text in _SCENE)
        self._keys = (*self._keys, *(key for key in keys if key in self._prompts))

    def _left(self, share: float = 1.0) -> bool:
        return time.monotonic() - self._begun < share * self._options.max_time

    def _judged(self) -> Iterator[Steps]:
        assert self._client is not None
        log = self._sender.log(self._client)
        yield from self._read_back(log)
        yield Steps(steps_of("together", self._of("whole")), self._options.at_once)
        course = Course(
            self._scenes, self._wanted, log=log, salt=self._sender.new_salt,
            flood=self._flood, life=self._life(self._client), left=self._left,
        )  # fmt: skip
        yield from course.stages()

    def _read_back(self, log: RequestLog) -> Iterator[Steps]:
        """Fill and read the cache in groups of documents, smaller ones where many are lost."""
        at, size = self._numbers.start, _GROUP
        while at < self._numbers.stop:
            lost = log.evictions
            for phase, text in _PASSES:
                keys = [key for key in self._of(text) if 0 <= key[0] - at < size]
                yield Steps(steps_of(phase, keys))
            at, size = at + size, max(2, size // 2) if log.evictions - lost > size else size

    def _of(self, text: Text) -> Iterator[Key]:
        return (key for key in self._keys if key[1] == text and key in self._expected)

    def sample(self, request: Request) -> Asked:
        """Document and text of a request."""
        number, text = self._steps[request.number].key
        return Asked(id=str(number), domain=text)

    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Recompute a prompt for all others, fill a cache, or follow a recomputed answer."""
        del protocol  # answers have the length of the options
        step = self._steps[request.number]
        time.sleep(step.wait)
        key, prompt = step.key, self._prompts[step.key]
        sent, tokens = msgspec.json.encode(prompt), step.tokens or self._options.tokens
        try:
            if step.phase == "fill":
                return Exchange(sent, self._sender.answer(client, prompt, tokens, step)[0])
            if step.phase != "recomputed":
                return self._followed(client, step, sent)
            reply = self._sender.recomputed(client, prompt, tokens, step)[0]
        except Unanswered as error:
            if step.phase == "recomputed":
                self._lost.add(key)
            return Exchange(sent, error.reply)
        self._expected[key] = reply
        return Exchange(sent, reply, differences=self._told_apart(key, reply))

    def _told_apart(self, key: Key, reply: Reply) -> Differences | None:
        """Hold an answer against that under the other identity of its scene, which differs."""
        other = self._expected.get((key[0], "begun")) if key[1] == "elsewhere" else None
        if other is None:
            return None
        return Differences(
            control=True, expected_cached=None, places=(0,), largest=(apart(other, reply),),
            kl=(0.0,), flips=0, left=0, requests=1,
        )  # fmt: skip

    def _followed(self, client: CompletionClient, step: Step, sent: bytes) -> Exchange:
        judged, expected = self._role == "judged", self._expected[step.key]
        send = self._sender.answer if judged else self._sender.recomputed
        sighted: list[Sighting] = []

        def ask(prompt: Question, tokens: int) -> Reply:
            reply, sighting = send(client, prompt, tokens, step)
            sighted.append(sighting)
            return reply

        begun = time.monotonic()
        found = forced(ask, self._prompts[step.key], expected)
        differences = Differences(
            control=not judged,
            expected_cached=expected.usage.cached_tokens,
            places=tuple(at for at, _ in found.places),
            largest=tuple(each.largest for _, each in found.places),
            kl=tuple(each.kl for _, each in found.places),
            flips=found.flips,
            left=found.left,
            requests=found.requests,
            situations=sighted[0].situations,
            shared=sighted[0].shared,
            contradiction=sighted[0].contradiction,
        )
        reply = found.first._replace(seconds=time.monotonic() - begun)
        return Exchange(sent, reply, differences=differences)

    def extract(self, request: Request, text: str) -> None:
        """No answer is right by itself."""

    def _life(self, client: CompletionClient) -> dict[Life, tuple[Order, ...]]:
        found = orders(client, self._server)
        if "weights" in found:
            other, own = found["weights"]
            found["weights"] = (partial(self._changed, client, other), own)
        return found

    def _changed(self, client: CompletionClient, order: Order) -> None:
        """Load other weights. Raises UsageError if answers are those of before."""
        order()
        key, expected = next(iter(self._expected.items()))
        salt = self._sender.new_salt() if self._sender.able.salt else ""
        step, prompt = PLAIN._replace(key=key, salt=salt), self._prompts[key]
        found = self._sender.answer(client, prompt, self._options.tokens, step)[0]
        if not apart(expected, found):
            raise UsageError(
                "weights: with the other ones the server answers as before",
                "--other-weights loads weights that change answers",
            )

    def _flood(self, like: Key | None) -> Key:
        """Make a long new prompt, which may begin like another one."""
        number, begun = next(self._floods), self._prompts[like] if like else ()
        assert not isinstance(begun, Chat), f"{like} is a chat"
        most = min(self._longest - WRITTEN - ROOM, 4 * TRIED[0])
        new = flood(self._pool(), most, seed=f"{self._sender.name} {number}")
        self._prompts[-number, "begun"] = cut(joined(begun, new), len(new))
        return -number, "begun"

    # --- the base, before its passes ---

    def _check_salts(self, client: CompletionClient) -> None:
        if self._with_salts and not self._sender.able.salt and not self._server.reset:
            raise UsageError(
                f"{client.url} takes no cache_salt, so that nothing can be recomputed beside its "
                "cache",
                "give a server without prefix cache with --recompute-url, or --reset PATH",
            )

    def _draw(self, client: CompletionClient) -> None:
        made = documents(
            self._options.documents,
            most_tokens=self._options.most_tokens,
            seed=self._seed,
            tokenize=partial(self._tokenized, client),
        )
        self._prompts = {
            (number, text): prompt
            for number, each in zip(self._numbers, made, strict=True)
            for text, prompt in each.prompts.items()
        }

    def _draw_scenes(self, client: CompletionClient) -> None:
        """Draw the scenes of all situations that the server can be brought into."""
        options = self._options
        if not options.require:
            return
        answers = partial(self._answers, client)
        self._longest = longest_prompt(client, answers, least=options.most_tokens)
        means = self._means(client)
        wanted = {*required(options.require, means), *(tried() if ALL in options.require else ())}
        able = {*doable(means), *tried()}
        self._wanted = frozenset(wanted & able) - self._earlier.seen
        first = self._numbers.stop
        self._scenes = list(
            scenes(self._wanted, self._pool(), first=first, seed=self._seed, longest=self._longest)
        )
        names = itertools.cycle(self._sender.able.adapters)
        for each in self._scenes:
            if each.kind == "image":
                chats = image_scene(f"{self._sender.name} {each.number}")
                self._prompts |= {(each.number, text): chat for text, chat in chats.items()}
                continue
            self._prompts[each.number, "begun"] = each.begun
            if each.kind == "adapter":
                self._prompts[each.number, "elsewhere"] = each.begun
                keys: tuple[Key, Key] = (each.number, "begun"), (each.number, "continued")
                self._sender.adapters |= dict.fromkeys(keys, next(names))

    def _pool(self) -> Prompt:
        """All documents in a row."""
        found = [self._prompts[n, "whole"] for n in self._numbers]
        if all(isinstance(each, tuple) for each in found):
            return tuple(n for each in found if isinstance(each, tuple) for n in each)
        return "".join(each for each in found if isinstance(each, str))

    def _means(self, client: CompletionClient) -> tuple[Means, ...]:
        able, life = self._sender.able, orders(client, self._server)
        return means_of(client, able, life, longest=self._longest)

    def _answers(self, client: CompletionClient, length: int) -> bool:
        """Return whether it takes a prompt of so many tokens."""
        pool = self._pool()
        size = length * (4 if isinstance(pool, str) else 1)
        try:
            self._sender.recomputed(client, (pool * (1 + size // len(pool)))[:size], 1)
        except Unanswered:
            return False
        return True

    def _tokenized(self, client: CompletionClient, text: str) -> Prompt:
        """Return the ids of a text, or the text; one that is too long loses its middle."""
        refused = ""
        for _ in range(_TRIES):
            try:
                found = self._sender.recomputed(client, text, 1)[0]
                return found.prompt_ids or text
            except Unanswered as error:
                refused, text = str(error), str(cut(text, len(text) // 2))
        raise UsageError(f"{client.url} answers no prompt: {refused}", "does it serve completions?")

    def _repeats(self, client: CompletionClient, name: str, sink: RunSink) -> bool:
        """Return whether recomputed answers repeat; a reset may replace salts that change them."""
        sink.progress(f"{name}: whether recomputed answers repeat", 0, 0)
        found = self._gap(client, name, sink)
        if found and found.cause == "salt" and self._server.reset:
            self._sender.neutral = False
            found = self._gap(client, name, sink)
        if found:
            sink.write(Unequal(configuration=name, cause=found.cause, largest=found.largest))
        return not found

    def _gap(self, client: CompletionClient, name: str, sink: RunSink) -> Gap | None:
        for number in self._numbers[:_FIRST]:
            prompt = self._prompts[number, "whole"]

            def ask(salt: str, prompt: Question = prompt) -> Reply:
                step = PLAIN._replace(salt=salt)
                return self._sender.under(client, prompt, self._options.tokens, step)[0]

            try:
                if found := gap(ask, [self._sender.salt() for _ in range(TIMES)]):
                    return found
            except Unanswered as error:
                sink.write(Lost(configuration=name, message=str(error)))
        return None
