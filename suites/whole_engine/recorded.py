"""A recording of a live engine as a history of the suite `engine`, for its own loop.

Requests arrive with their tokens, answer with the recorded ones, and are aborted, in the recorded
order; in between the engine steps until each has computed as many tokens as it had then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproof.harness.contract.target import Group
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.harness.errors import UsageError
from kvproof.harness.model.chain import FIRST_TOKEN
from kvproof.harness.model.fingerprints import LONGEST
from kvproof.harness.recorder.codec import unpack
from kvproof.harness.recorder.recording import Header, Line, Recording
from kvproof.suites.framework.component_suite import Arguments, Config


@dataclass
class Recorded:
    """A recording as a configuration and operations."""

    config: Config
    operations: list[tuple[str, Arguments]]
    requests: int
    tokens: int
    stopped: str
    """Why the recorder gave up; empty: it did not."""
    left_out: tuple[str, ...] = ()
    """Facts of the engine that a replay lacks: a failure may need them."""


def history_of(recording: Recording, traits: WholeEngineTraits) -> Recorded:
    """Translate a recording for an engine; its traits have the facts that the recording lacks.

    Raises UsageError for a damaged recording, for one that is too long, and for groups of unequal
    blocks.
    """
    _refuse(recording.header)
    made = _Translation(ahead=int(bool(recording.header.loop.get("asynchronous"))))
    for place, line in recording.lines():
        made.take(line)
        if made.longest >= LONGEST:
            raise UsageError(
                f"{place}: a request of {made.longest:,} tokens; replayed on an engine's own loop "
                f"are those of less than {LONGEST:,}",
                "without --target it is judged as it was recorded",
            )
    made.end()
    config = _config(recording.header, made, traits)
    tokens = sum(len(each.keywords["prompt"]) for each in made.all)
    left_out = tuple(_left_out(recording, made))
    return Recorded(config, made.operations, len(made.all), tokens, made.stopped, left_out)


def _refuse(header: Header) -> None:
    sizes = {group.block_size for group in header.groups}
    if len(sizes) > 1:
        raise UsageError(
            f"groups with blocks of {', '.join(map(str, sorted(sizes)))} tokens: an engine's own "
            "loop is replayed with blocks of one size",
            "without --target it is judged as it was recorded",
        )


def _left_out(recording: Recording, made: _Translation) -> Iterator[str]:
    """Yield the facts that a replay of a recording lacks."""
    header = recording.header
    if recording.dropped or header.segment > 1:
        yield "what was cached before its first line"
    if made.loaded:
        yield "tokens that came from another tier or engine"
    if header.overlaps or not header.loop:
        yield "how steps overlapped in time, and which drafts were guessed"
    if not header.loop:
        yield "the settings of its scheduler, which the recorder did not see"
    if header.hashed:
        yield "tokens themselves: they are hashed"
    yield "the bytes on its device and the time that kernels and copies took"


def _config(header: Header, made: _Translation, traits: WholeEngineTraits) -> Config:
    usual = {"token_budget": traits.token_budget, "max_requests": traits.max_requests}
    loop = {**usual, **header.loop}
    room = _room(header, int(loop["token_budget"]))
    longest = max((len(each.tokens) + each.more for each in made.all), default=1) + made.ahead
    return {
        "engine": {
            **loop,
            "blocks": header.num_blocks,
            "block_size": header.block_size,
            "caching": header.prefix_caching,
            **_groups(header),
            "max_length": min(room, max(int(loop.get("max_length", 0)), longest)),
        }
    }


def _room(header: Header, budget: int) -> int:
    """Return the longest request that an engine starts with: windows and states take blocks too."""
    size, groups = header.block_size, header.groups
    whole = sum(each.kind == "full" for each in groups) or 1
    taken = sum(_short(each, budget, size) for each in groups)
    return max(1, (header.num_blocks - 1 - taken) // whole * size)


def _short(group: Group, budget: int, size: int) -> int:
    """Return the blocks that a group keeps for one request, however long; 0 for full attention."""
    if group.kind == "state":
        return 2
    return -(-(group.size + budget) // size) + 1 if group.size else 0


def _groups(header: Header) -> dict[str, list[Arguments]]:
    """Return the groups of a model with one layer in each."""
    found = [
        {"kind": each.kind, "layers": 1, **({"size": each.size} if each.size else {})}
        for each in header.groups
    ]
    return {"groups": found} if found else {}


@dataclass
class _Request:
    keywords: Arguments
    """Arguments of its submission; answers are filled in at its end."""
    tokens: list[int]
    stop: int = 0
    more: int = 1
    """Tokens that it generates beyond those that are known."""


@dataclass
class _Translation:
    ahead: int
    """Tokens of a request that runs which are computed, and not known yet."""
    operations: list[tuple[str, Arguments]] = field(default_factory=list)
    all: list[_Request] = field(default_factory=list)
    stopped: str = ""
    longest: int = 0
    loaded: bool = False
    """Whether tokens came from elsewhere."""
    _ids: dict[int, int] = field(default_factory=dict)
    """Token of the recording -> ours: those are small."""
    _versions: dict[tuple[str, str], int] = field(default_factory=dict)
    _running: dict[int, _Request] = field(default_factory=dict)
    """Number of the admission -> request."""
    _preempted: dict[str, _Request] = field(default_factory=dict)
    """Engine's name of a request -> request."""
    _names: dict[int, str] = field(default_factory=dict)

    def take(self, line: Line) -> None:
        """Add the operation of a line."""
        act = getattr(self, f"_{line.op}", None)
        if act is not None:
            act(line)

    def end(self) -> None:
        """Let running requests run to their end, and look at the blocks still held."""
        for each in (*self._running.values(), *self._preempted.values()):
            self._close(each, self.ahead)
        self.operations.append(("drain", {}))

    def _admit(self, line: Line) -> None:
        self.loaded |= line.loaded > 0
        self._names[line.n] = line.name
        request = self._preempted.pop(line.name, None)
        if request is None:
            request = self._arrived(line)
        self._running[line.n] = request
        self._grown(request, line, self._ours(line.tokens))

    _carry = _admit

    def _arrived(self, line: Line) -> _Request:
        tokens = self._ours(line.tokens)
        keywords: Arguments = {"id": f"r{len(self.all)}", "prompt": tokens}
        if line.salt:
            keywords["salt"] = line.salt
        if line.adapter:
            key = (line.adapter, line.adapter_version or "")
            keywords["adapter"] = line.adapter
            keywords["version"] = self._versions.setdefault(key, len(self._versions))
        if line.spans:
            spans = line.request.spans
            keywords["media"] = [[each.start, each.length, str(each.content)] for each in spans]
        request = _Request(keywords, [])
        self.all.append(request)
        self.operations.append(("submit", keywords))
        return request

    def _ours(self, packed: str) -> list[int]:
        ids = self._ids
        return [ids.setdefault(each, FIRST_TOKEN + len(ids)) for each in unpack(packed)]

    def _grown(self, request: _Request, line: Line, tokens: list[int]) -> None:
        if line.op == "extend":
            request.tokens += tokens
        elif len(tokens) > len(request.tokens):
            request.tokens[:] = tokens
        request.stop = line.stop
        self.longest = max(self.longest, len(request.tokens))
        advance = {"request": request.keywords["id"], "to": line.stop}
        self.operations.append(("advance", advance))

    def _extend(self, line: Line) -> None:
        self._grown(self._running[line.n], line, self._ours(line.tokens))

    def _preempt(self, line: Line) -> None:
        self._preempted[self._names[line.n]] = self._running.pop(line.n)

    def _finish(self, line: Line) -> None:
        request = self._running.pop(line.n)
        self._close(request, ahead=0)
        advance = {"request": request.keywords["id"], "to": LONGEST}
        self.operations.append(("advance", advance))

    def _cancel(self, line: Line) -> None:
        request = self._running.pop(line.n)
        request.more = 2  # it must not end before it is aborted
        self._close(request, self.ahead)
        self.operations.append(("abort", {"request": request.keywords["id"]}))

    def _reset(self, line: Line) -> None:
        if line.done:
            self.operations.append(("reset", {"running": False}))

    def _stopped(self, line: Line) -> None:
        self.stopped = line.reason

    def _close(self, request: _Request, ahead: int) -> None:
        """Set the answers: the last one is sampled and never computed."""
        prompt = len(request.keywords["prompt"])
        known = len(request.tokens) - prompt + ahead
        request.keywords["answers"] = max(1, known + request.more)
        request.keywords["given"] = request.tokens[prompt:]
