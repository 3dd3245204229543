"""Sensitivity of parity: bugs planted under one request, on every family.

A request hits an earlier one. Just before its first step, data that it is about to read is damaged,
or its forwards are called as a buggy engine would call them. The levels must then differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch

from kvproof.reference.model.interface import Work
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.page_map import Field
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.compare import TOLERANCE, Outcome, Subject, against, spliced
from kvproof.suites.tests.lab.parity.prompts import longer
from kvproof.suites.tests.lab.parity.run import BLOCK, Prompt, Run
from kvproof.suites.tests.lab.parity.tiny_models import FAMILIES

HIT = 9 * BLOCK
"""Tokens reused: the middle of a chunk of attention, so that windows and chunks both look back."""
ANSWER = 6

Damage: TypeAlias = Callable[["Victim"], None]
Call: TypeAlias = Callable[[dict[str, Any]], None]
"""Changes the arguments of a forward."""


class Victim(NamedTuple):
    """A request before its first step."""

    memory: PagedMemory
    work: Work
    donor_state: bytes
    """The progress of the request that it shares its prefix with."""

    def pages(self, *names: str) -> Iterator[tuple[torch.Tensor, list[int]]]:
        """Yield each tensor of attention with the kernel blocks that were hit last."""
        for group, config in enumerate(self.memory.map.configs):
            last = self.work.start // config.kernel_size
            table = self.work.tables[group][max(0, last - config.kernel_ratio) : last].tolist()
            for layer, part, _ in self.memory.map.fields[group]:
                if part.name in (names or ("keys", "values", "indexer")):
                    yield self.memory.view(group, layer, part.name), table

    def change_state(self, change: Callable[[torch.Tensor, Field], torch.Tensor]) -> None:
        """Change each tensor of the state that the request begins with."""
        use = self.work.state
        assert use is not None
        ids = use.restore[0] if use.restore else use.read
        state = self.memory.state(ids)
        for field in self.memory.map.states:
            part = field.part
            data = state[field.offset : field.offset + part.nbytes]
            values = data.clone().view(part.dtype).view(part.shape)
            data.copy_(change(values, field).contiguous().view(-1).view(torch.uint8))
        self.memory.write_state(ids, state)


# --- the bugs ---


def _wrong_block(victim: Victim) -> None:
    for group, config in enumerate(victim.memory.map.configs):
        table, last = victim.work.tables[group], victim.work.start // config.kernel_size
        ratio = config.kernel_ratio
        if config.kind != "state":
            table[last - ratio : last] = table[last - 2 * ratio : last - ratio]


def _zeroed_block(victim: Victim) -> None:
    for tensor, pages in victim.pages():
        tensor[pages] = 0


def _one_token(victim: Victim) -> None:
    for tensor, pages in victim.pages():
        tensor[pages[-1], -1] = tensor[pages[-1], -2].clone()


def _shifted_block(victim: Victim) -> None:
    for tensor, pages in victim.pages():
        entries = tensor[pages].flatten(0, 1)
        entries[1:] = entries[:-1].clone()
        tensor[pages] = entries.view(len(pages), *tensor.shape[1:])


def _rounded_entries(victim: Victim) -> None:
    for tensor, pages in victim.pages():
        tensor[pages] = _rounded(tensor[pages])


def _lost_indexer(victim: Victim) -> None:
    for tensor, pages in victim.pages("indexer"):
        tensor[pages] = 0


def _early_window(victim: Victim) -> None:
    """Free the oldest visible block of each window and chunk one step too early."""
    for group, config in enumerate(victim.memory.map.configs):
        if config.size:
            start = victim.work.start
            chunk = start // config.size * config.size
            first = start - config.size + 1 if config.kind == "window" else chunk
            page = first // config.kernel_size
            victim.work.tables[group][page : page + config.kernel_ratio] = 0


def _zero_state(victim: Victim) -> None:
    victim.change_state(lambda values, _: torch.zeros_like(values))


def _running_state(victim: Victim) -> None:
    use, state = victim.work.state, victim.donor_state
    assert use is not None
    assert state
    tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8).to(victim.memory.device)
    victim.memory.write_state(use.restore[0] if use.restore else use.read, tensor)


def _shifted_convolution(victim: Victim) -> None:
    victim.change_state(
        lambda values, field: values.roll(1, -1) if field.part.name == "conv_states" else values
    )


def _rounded_state(victim: Victim) -> None:
    victim.change_state(lambda values, _: _rounded(values))


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).to(values.dtype)


def _next_positions(arguments: dict[str, Any]) -> None:
    arguments["position_ids"] = arguments["position_ids"] + 1


def _no_mask(arguments: dict[str, Any]) -> None:
    arguments.pop("attention_mask", None)


class Bug(NamedTuple):
    """One planted bug."""

    name: str
    story: str
    visible: Callable[[Subject], bool]
    damage: Damage | None = None
    call: Call | None = None
    together: bool = False
    """Needs rows of unequal length in one forward."""


def _attends(subject: Subject) -> bool:
    return subject.attends


def _stateful(subject: Subject) -> bool:
    return subject.stateful


BUGS: tuple[Bug, ...] = (
    Bug("wrong block", "a table names the block before", _attends, _wrong_block),
    Bug("zeroed block", "a block was cleared", _attends, _zeroed_block),
    Bug("one token", "one entry is its neighbour's", _attends, _one_token),
    Bug("shifted block", "entries lie one slot late, the last is lost", _attends, _shifted_block),
    Bug("rounded entries", "a block went through bfloat16", _attends, _rounded_entries),
    Bug(
        "lost indexer",
        "a block lacks its indexer keys",
        lambda subject: "indexer" in subject.parts,
        _lost_indexer,
    ),
    Bug(
        "early window",
        "a block leaves a window one step too early",
        lambda subject: any(layer.size for layer in subject.probe.layers),
        _early_window,
    ),
    Bug("zero state", "a checkpoint was not restored", _stateful, _zero_state),
    Bug("running state", "a checkpoint went on with its request", _stateful, _running_state),
    Bug("shifted convolution", "a window of inputs is one off", _stateful, _shifted_convolution),
    Bug("rounded state", "a checkpoint went through bfloat16", _stateful, _rounded_state),
    Bug(
        "next positions",
        "positions count on from one too many",
        lambda subject: FAMILIES[subject.name].rotary,
        call=_next_positions,
    ),
    Bug("no mask", "padding is attended to", _attends, call=_no_mask, together=True),
)


def seen(subject: Subject, bug: Bug | None) -> Outcome:
    """Serve a request under a bug; the bug is found if this outcome does not pass."""
    run = Run(subject.model, mode="batched" if bug and bug.together else "exact")
    writer = Writer(7)
    system = subject.prompt(writer, 60, HIT - 78 if subject.image else HIT - 60, seed=5)
    donor = run.serve([system], answer=ANSWER)[0]
    victim = longer(system, writer.text(21))
    others = [Prompt(writer.text(5))] if bug and bug.together else []
    with _planted(run, subject.model, bug, donor.content.state):
        served = run.serve([victim, *others], answer=ANSWER)
    assert served[0].hit == HIT, f"a hit of {served[0].hit} tokens, not {HIT}"
    if others:
        return against(subject, [(each, ()) for each in served], limit=TOLERANCE)
    return against(subject, spliced([donor, served[0]]), limit=0)


@contextmanager
def _planted(run: Run, model: Any, bug: Bug | None, donor_state: bytes) -> Iterator[None]:
    waiting = [bug.damage] if bug and bug.damage else []

    def before(works: Sequence[Work]) -> None:
        if waiting:
            waiting.pop()(Victim(run.model.memory, works[0], donor_state))

    def call(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert bug is not None
        assert bug.call is not None
        bug.call(kwargs)
        return args, kwargs

    run.model.before = before
    hooked = bug is not None and bug.call is not None
    handle = model.register_forward_pre_hook(call, with_kwargs=True) if hooked else None
    try:
        yield
    finally:
        run.model.before = lambda _: None
        if handle:
            handle.remove()
