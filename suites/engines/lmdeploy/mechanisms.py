"""Known failures of LMDeploy; records and pages of the findings have the causes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Request, Scheduled, Span, Table
from kvproof.harness.oracle.shadow_memory import Mismatch
from kvproof.harness.oracle.state import OracleState, RequestState
from kvproof.suites.framework.failed import Failed

_NO_ROWS = (
    "the engine raised AttributeError: 'NoneType' object has no attribute 'is_decoding' in "
    "lmdeploy/pytorch/strategies/ar/model_inputs.py:index_select_model_inputs"
)
"""The model agent has no rows yet, and some are to be taken out."""


def refused_admission_evicts(found: Failed) -> bool:
    """A call that does not fit evicts cached blocks, or a checkpoint, before it is refused."""
    operation, answer = found.state.history[-1]
    if not isinstance(operation, (ops.Admit, ops.Extend)) or not isinstance(answer, Refused):
        return False
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    lost = before.usage.cached - after.usage.cached
    rows = len(_dropped(after, 1))
    return (
        answer.reason == "no_space"
        and before.holders == after.holders
        and before.usage.held == after.usage.held
        and after.usage.free - before.usage.free == lost
        and (lost > 0 or rows == 1)
        and (lost > 0 or found.state.layout.separate)
        and rows <= 1 + lost
    )


def waiting_turn_gives_its_blocks_up(found: Failed) -> bool:
    """The next turn of a session does not fit, and the blocks of its earlier turns are freed."""
    operation, answer = found.state.history[-1]
    if not isinstance(operation, ops.Extend) or not isinstance(answer, Refused):
        return False
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    live = found.state.live[operation.id]
    given_up = Counter(before.holders) - Counter(after.holders)
    return (
        answer.reason == "no_space"
        and len(operation.tokens) > 1
        and live.computed % found.state.layout.unit != 0
        and given_up == Counter(live.blocks)
        and not Counter(after.holders) - Counter(before.holders)
    )


def _dropped(inspection: Inspection, group: int) -> Table:
    dropped = inspection.dropped or ()
    return dropped[group] if group < len(dropped) else ()


def clamped_suffix_is_not_cached(found: Failed) -> bool:
    """Blocks computed again, because a hit would end inside a span, enter no trie."""
    if found.has("idle"):
        missing = len(found.fact("idle", frozenset)) - found.fact("cached", int)
        return missing > 0 and missing == len(_outside_the_trie(found))
    live, hit = found.fact("live", RequestState), found.fact("hit", int)
    model, layout = found.state.model, found.state.layout
    lost = model.blocks(live.prints, hit // layout.unit * layout.unit, _expected(found), 0)
    return bool(lost) and all(
        any(block in _computed_again(found.state, other) for other in _clamped(found.state))
        for block in lost
    )


def _expected(found: Failed) -> int:
    unit = found.state.layout.unit
    return found.fact("expected", int) // unit * unit


def _drop_what_is_outside_the_trie(found: Failed) -> None:
    """Forget the blocks that the oracle thinks cached."""
    if found.has("idle"):
        found.state.model.drop_all(_outside_the_trie(found))


def _outside_the_trie(found: Failed) -> set[int]:
    """The blocks after the cut-back hit of the request that has just ended."""
    state, idle = found.state, found.fact("idle", frozenset)
    operation = state.history[-1][0]
    ended = {operation.id} if isinstance(operation, (ops.Finish, ops.Cancel, ops.Preempt)) else ()
    blocks = {b for each in _clamped(state) if each.request.id in ended
              for b in _computed_again(state, each)}  # fmt: skip
    return blocks & idle


def _clamped(state: OracleState) -> list[RequestState]:
    """Requests whose hit was cut back to before a span."""
    left = [state.left] if state.left else []
    return [each for each in (*state.live.values(), *left) if each.matched > each.hit]


def _computed_again(state: OracleState, live: RequestState) -> Collection[int]:
    return live.groups[0][live.hit // state.layout.unit :] if live.groups else ()


def second_turn_shifts_its_table(found: Failed) -> bool:
    """The next turn of a session hits blocks, which are appended after its partial last one."""
    live, answer = found.fact("live", RequestState), found.fact("answer", Scheduled)
    before, size = found.fact("before", tuple)[0], found.state.layout.unit
    operation = found.state.history[-1][0]
    gained = answer.start // size - live.computed // size
    appended = answer.blocks[0][len(before) : len(before) + gained]
    cached, model = found.state.model.cached, found.state.model
    first = live.computed // size
    # the trie's own block for the entry may have taken the place of the hit block
    keys = model.keys(live.prints, 0)
    wanted = [keys[first + at : first + at + 2] for at in range(gained)]
    return (
        isinstance(operation, ops.Extend)
        and len(operation.tokens) > 1
        and live.computed % size != 0
        and answer.blocks[0][: len(before)] == before
        and gained > 0
        and answer.start % size == 0
        and len(appended) == gained
        and all(
            block in cached and cached[block].content in either
            for block, either in zip(appended, wanted, strict=True)
        )
    )


def private_copy_pins_its_original(found: Failed) -> bool:
    """Cached blocks that no request holds stay while a request holds blocks below them."""
    pinned = len(_pinned(found.state))
    if found.has("room"):
        short = found.fact("needed", int) - (found.fact("room", int) - pinned)
        return pinned > 0 and short > 0
    taken, idle = found.fact("taken", tuple), found.fact("idle", frozenset)
    least = min(found.fact("count", int), len(idle) - pinned)
    return pinned > 0 and set(taken) <= idle and len(taken) >= least


def _pinned(state: OracleState) -> set[int]:
    """Idle cached blocks before a block of a request that computed copies of them."""
    held, cached = state.holders(), state.model.cached
    parents = {entry.content: entry.parent for entry in cached.values()}
    ancestors: set[int] = set()
    for live in state.live.values():
        if live.matched <= live.hit and live.hit % state.layout.unit == 0:
            continue  # it has no copies
        content = next((cached[b].parent for b in reversed(live.groups[0]) if b in cached), 0)
        while content and content not in ancestors:
            ancestors.add(content)
            content = parents.get(content, 0)
    return {b for b, e in cached.items() if b not in held and e.content in ancestors}


def full_pool_saves_no_state_inside_a_block(found: Failed) -> bool:
    """A checkpoint goes for one inside a block, which then finds no block for its frozen copy."""
    answer, inspected = found.state.history[-1][1], found.state.inspected
    return (
        found.has("free_rows")
        and found.state.config.partial_blocks
        and isinstance(answer, Scheduled)
        and answer.stop % found.state.layout.unit != 0
        and not answer.saves
        and found.fact("dropped", int) == 1
        and inspected is not None
        and inspected.usage.free == 0
    )


def hit_inside_a_block_ends_caching(found: Failed) -> bool:
    """After a hit inside a block no state of the prompt is saved."""
    live = found.fact("live", RequestState)
    return live.hit % found.state.layout.unit != 0 and found.state.config.partial_blocks


ADOPT = {"clamped_suffix_is_not_cached": _drop_what_is_outside_the_trie}
"""Known failure -> correction of the model, before the history goes on."""


def images_are_their_placeholders(found: Failed) -> bool:
    """Blocks are known by their placeholder tokens alone: equal tokens, other images."""
    state = found.state
    if found.has("mismatch"):
        wrong, own = found.fact("mismatch", Mismatch), found.fact("live", RequestState).request
        return wrong.writer is not None and _look_alike(
            wrong.writer.request, own, wrong.position + 1
        )
    if found.has("before"):
        return _gave_way_to_a_look_alike(found)
    pairs = combinations(_requests(state), 2)
    return any(_look_alike(*pair, _shared(*pair, state.layout.unit)) for pair in pairs)


def _gave_way_to_a_look_alike(found: Failed) -> bool:
    """Each changed entry of the table is a block with the same tokens and other images."""
    live, answer = found.fact("live", RequestState), found.fact("answer", Scheduled)
    state, before = found.state, found.fact("before", tuple)[0]
    unit, now = state.layout.unit, answer.blocks[0]
    changed = [at for at, block in enumerate(before) if now[at : at + 1] != (block,)]
    return (
        bool(changed)
        and live.computed == answer.start
        and len(now) >= len(before)
        and all(_is_a_look_alike(state, live.request, at, now[at], unit) for at in changed)
    )


def _is_a_look_alike(state: OracleState, own: Request, index: int, block: int, unit: int) -> bool:
    entry, stop = state.model.cached.get(block), (index + 1) * unit
    return entry is not None and any(
        _look_alike(own, other, stop)
        and state.model.keys(state.prints(other), 0)[index] == entry.content
        for other in _requests(state)
        if len(other.tokens) >= stop
    )


def _look_alike(one: Request, other: Request, stop: int) -> bool:
    """Whether both begin with the same tokens up to `stop`, and their images there differ."""
    return (
        min(len(one.tokens), len(other.tokens)) >= stop
        and one.namespace == other.namespace
        and one.tokens[:stop] == other.tokens[:stop]
        and _images(one, stop) != _images(other, stop)
    )


def _shared(one: Request, other: Request, unit: int) -> int:
    """Return the tokens of the whole blocks that both begin with."""
    pairs = enumerate(zip(one.tokens, other.tokens, strict=False))
    shortest = min(len(one.tokens), len(other.tokens))
    return next((at for at, (mine, its) in pairs if mine != its), shortest) // unit * unit


def _images(request: Request, stop: int) -> list[Span]:
    return [span for span in request.spans if span.start < stop]


def _requests(state: OracleState) -> list[Request]:
    """Every request of the history, with all tokens that it came to have."""
    found: dict[str, Request] = {}
    earlier: list[Request] = []
    for operation, answer in state.history:
        if isinstance(operation, ops.Admit) and isinstance(answer, Scheduled):
            name = operation.request.id
            earlier += [found[name]] if name in found else []
            found[name] = operation.request
        elif isinstance(operation, ops.Extend) and isinstance(answer, Scheduled):
            request = found[operation.id]
            found[operation.id] = replace(request, tokens=(*request.tokens, *operation.tokens))
    return [*earlier, *found.values()]


def hits_end_inside_images(found: Failed) -> bool:
    """Nothing keeps a hit from ending inside an image."""
    return found.has("live") and bool(found.fact("live", RequestState).request.spans)


def chunked_turns_give_blocks_up(found: Failed) -> bool:
    """The next turn of a session that needs chunks gives up all blocks of the session."""
    operation = found.state.history[-1][0]
    return isinstance(operation, ops.Extend) and len(operation.tokens) > 1


def hits_before_chunks_are_given_up(found: Failed) -> bool:
    """A hit is given up where the rest of the prompt still needs chunks."""
    operation, answer = found.state.history[-1]
    if isinstance(answer, Refused):  # it needs more room than its rest does
        chunked = isinstance(operation, ops.Admit) and operation.compute is not None
        return chunked and answer.needed > found.fact("needed", int)
    return isinstance(operation, ops.Admit) and not found.fact("hit", int)


def waiting_counts_as_query(found: Failed) -> bool:
    """A request, or a turn, that waits counts in the statistics whenever it is matched."""
    operation, answer = found.state.history[-1]
    before, after = found.fact("before", Inspection), found.fact("found", Inspection)
    return (
        isinstance(operation, (ops.Admit, ops.Extend))
        and isinstance(answer, Refused)
        and before.usage == after.usage
        and before.holders == after.holders
        and not any(after.dropped or ())
    )


def stopped_chunk_joins_the_decodes(found: Failed) -> bool:
    """A prompt in chunks was cancelled before any request had decoded, and another one comes."""
    return bool(found.fact("aborted_chunks", list)) and found.violation.sentence == _NO_ROWS


_READ = re.compile(
    r"(\w+) reads position (\d+) of \d+ in block (\d+) .*: it holds position (\d+) of "
)


def preempted_request_shifts_its_table(found: Failed) -> bool:
    """A block stands too far in the table of a request that goes on.

    The request reads there the tokens of the block's own place; or others read at that place
    the tokens that it has written since.
    """
    read = _READ.match(found.violation.sentence)
    if read is None or not found.has("shifted"):
        return False
    position, block, held = map(int, read.groups()[1:])
    size = found.config["engine"]["block_size"]
    place, off = divmod(position, size)
    launch, written = found.fact("launch", int), found.fact("written_by", int)
    for each in (each for each in found.fact("shifted", list) if each["block"] == block):
        far, near = (each[name] * size + off for name in ("place", "own"))
        own = read[1] == each["request"] and launch >= each["launch"]
        if own and (place, held) == (each["place"], near):
            return True
        if written >= each["launch"] and (place, held) == (each["own"], far):
            return True
    return False
