"""Scenarios: short sequences of operations that single rules rarely draw.

A scenario leaves out operations that the target's profile does not claim. Its operations are judged
like those of any rule; a refusal ends it early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Request
from kvproof.suites.conformance.driver import Driver
from kvproof.suites.framework.draws import integers

Scenario: TypeAlias = Callable[[Driver], None]


def repeat(driver: Driver) -> None:
    """Serve a prompt of whole units, look it up, and serve it again: its last token is computed."""
    request = driver.prompts.plain(4, beyond=0)
    driver.serve(request)
    if driver.profile.lookup:
        driver.apply(ops.Lookup(request))
    driver.serve_again(request)


def resume(driver: Driver) -> None:
    """Preempt a request and bring it back while its own blocks are still there."""
    request = driver.prompts.plain(2)
    if driver.run(request):
        driver.apply(ops.Preempt(request.id))
        driver.serve(replace(request, resumed=True))


def change_tenant(driver: Driver) -> None:
    """Serve equal tokens in two namespaces."""
    request = driver.prompts.plain(2)
    for _ in range(2):
        space = driver.draw(st.sampled_from(driver.prompts.spaces))
        driver.serve_again(replace(request, namespace=space))


def change_identity(driver: Driver) -> None:
    """Serve equal numbers under unlike keys, and as ids and rows of embeddings."""
    each = driver.prompts.identities()
    for _ in range(driver.draw(integers(2, 4))):
        driver.serve_again(driver.draw(st.sampled_from(each)))


def pin_under_eviction(driver: Driver) -> None:
    """Pin the cached blocks of a prompt, try to evict them, and unpin them."""
    if not driver.profile.pins:
        return
    request = driver.prompts.plain(2)
    driver.serve(request)
    pin = driver.prompts.name()
    for _ in range(driver.draw(integers(1, 2))):  # a second one of that name changes nothing
        driver.apply(ops.Pin(replace(request, id=pin)))
    if driver.profile.evict:
        driver.apply(ops.Evict(driver.draw(integers(1, 3))))
    driver.apply(ops.Unpin(pin))


def reset_and_repeat(driver: Driver) -> None:
    """Reset, which a target may refuse, and repeat an earlier prompt."""
    request = driver.prompts.plain(2)
    driver.serve(request)
    driver.apply(ops.Reset())
    driver.serve_again(request)


def read_batch(driver: Driver) -> None:
    """Read the tables of prompts of different lengths together."""
    if not driver.profile.batch:
        return
    for most in (1, 3):
        driver.admit(driver.prompts.plain(most))
    if driver.session.live:
        driver.apply(ops.ReadBatch(tuple(sorted(driver.session.live)[-3:])))


def backfill_experts(driver: Driver) -> None:
    """Compute a prompt without expert rows, hit it, recompute it with them, and read all rows."""
    if not driver.profile.experts:
        return
    request = driver.prompts.plain(2)
    again = not driver.profile.no_read
    for read, routed in ((True, False), (True, False), (again, True), (True, True)):
        driver.drain()
        name = driver.run_again(replace(request, read=read), routed=routed)
        if name in driver.session.live:
            driver.apply(ops.Experts(name))
            driver.finish(name)


def slide_windows(driver: Driver) -> None:
    """Let windows move over a prompt, evict the blocks that they left, and repeat the prompt."""
    request = driver.prompts.plain(4)
    driver.serve(request, driver.unit)
    if driver.profile.evict and driver.draw(st.booleans()):
        driver.apply(ops.Evict(driver.draw(integers(1, 4))))
    driver.serve(replace(request, id=driver.prompts.name()), driver.unit)


def cut_back(driver: Driver) -> None:
    """Serve a prompt, evict the blocks that its windows left, and serve some of its beginnings."""
    request = driver.prompts.plain(4)
    driver.serve(request)
    if driver.profile.evict:
        driver.apply(ops.Evict(driver.draw(integers(1, 4))))
    for _ in range(3):
        end = driver.draw(integers(min(driver.unit, len(request.tokens)), len(request.tokens)))
        driver.serve(Request(driver.prompts.name(), request.tokens[:end]))


def return_after_eviction(driver: Driver) -> None:
    """Serve prompts that together exceed the pool, then go on from the first.

    Once from all of it, where a state was saved, and once from anywhere in it.
    """
    first = driver.prompts.plain(3)
    driver.serve(first)
    for _ in range(driver.draw(integers(1, 3))):
        driver.serve(driver.prompts.plain(3))
    for end in (len(first.tokens), driver.draw(integers(1, len(first.tokens)))):
        rest = driver.prompts.tokens(driver.draw(integers(1, driver.unit)))
        driver.run(Request(driver.prompts.name(), first.tokens[:end] + rest))


def crowded_rows(driver: Driver) -> None:
    """Fill the rows with states of short prompts, run one, and admit a hit that needs all blocks.

    The pool cannot serve that hit while the other one runs.
    """
    driver.drain()
    for name in tuple(driver.session.live):
        driver.finish(name)
    known = [driver.prompts.unique(1) for _ in range(max(2, driver.config.state_rows - 1))]
    for request in known:
        driver.serve(request)
    driver.run(driver.prompts.unique(driver.draw(integers(1, 2))))
    units = (driver.config.num_blocks - 1) // max(1, driver.session.layout.unit_blocks)
    rest = driver.prompts.tokens((units - 1) * driver.unit)
    driver.admit(Request(driver.prompts.name(), known[-1].tokens + rest))


def fill_the_pool(driver: Driver) -> None:
    """Run a request that fills the pool to its last block; neither it nor another has room then."""
    driver.drain()
    for name in tuple(driver.session.live):
        driver.finish(name)
    units = (driver.config.num_blocks - 1) // max(1, driver.session.layout.unit_blocks)
    request = driver.prompts.unique(max(1, units))
    if not driver.run(request):
        return
    driver.admit(driver.prompts.plain(1))
    driver.extend(request.id, driver.prompts.tokens(1))
    driver.compute_rest(request.id)
    driver.finish(request.id)
    driver.serve_again(request)


def overlap(driver: Driver) -> None:
    """Schedule step after step of a prompt before the first of them has run."""
    request = driver.prompts.plain(4)
    driver.drain()
    driver.admit(request, driver.unit)
    while driver.pending(request.id):
        before = driver.pending(request.id)
        driver.extend(request.id, compute=driver.unit)
        if driver.pending(request.id) == before:
            break  # it was refused
    driver.compute_rest(request.id)
    driver.finish(request.id)


def uneven_chunks(driver: Driver) -> None:
    """Compute a prompt in steps that end anywhere, and continue it in another request."""
    request = driver.prompts.plain(4, beyond=driver.draw(integers(1, driver.unit)))
    driver.drain()
    driver.admit(request, driver.unit)
    while pending := driver.pending(request.id):
        driver.drain()
        driver.extend(request.id, compute=driver.draw(integers(1, 2 * driver.unit)))
        if driver.pending(request.id) == pending:
            break  # it was refused
    driver.drain()
    driver.finish(request.id)
    longer = request.tokens + driver.prompts.tokens(1)
    driver.serve(Request(driver.prompts.name(), longer))


def diverge(driver: Driver) -> None:
    """Serve a prompt, one that leaves it where no state was saved, and one like that."""
    first = driver.prompts.plain(4)
    half = first.tokens[: len(first.tokens) // 2 + 1]
    driver.serve(first)
    for _ in range(2):
        rest = driver.prompts.tokens(len(first.tokens))
        driver.serve(Request(driver.prompts.name(), (half + rest)[: driver.prompts.longest]))


def generate(driver: Driver) -> None:
    """Generate tokens over several block borders, and continue them in another request."""
    request = driver.prompts.plain(1)
    if not driver.run(request):
        return
    for _ in range(3):
        if request.id in driver.session.live:
            tokens = driver.prompts.tokens(driver.unit)
            driver.extend(request.id, tokens, None, driver.prompts.drafts())
            driver.compute_rest(request.id)
    if request.id in driver.session.live:
        longer = driver.session.live[request.id].request
        driver.finish(request.id)
        driver.serve_again(longer)


def shared_continuation(driver: Driver) -> None:
    """Serve the coming tokens of a running request, then generate them in its partial block."""
    request, rest = driver.prompts.plain(1), driver.prompts.tokens(driver.unit + 1)
    if not driver.run(request):
        return
    driver.serve(Request(driver.prompts.name(), request.tokens + rest))
    driver.extend(request.id, rest)
    driver.compute_rest(request.id)
    driver.finish(request.id)


def reject_drafts(driver: Driver) -> None:
    """Reject drafts across a block border, and serve the prompt with them accepted."""
    request = driver.prompts.plain(2)
    if not (driver.profile.drafts and driver.run(request)):
        return
    drafts = driver.prompts.tokens(driver.unit + 1)
    driver.extend(request.id, driver.prompts.tokens(1), None, drafts)
    as_if = driver.session.live[request.id].request
    while driver.session.steps:
        driver.complete(accepted=driver.draw(st.sampled_from((0, 0, 1))))
    driver.finish(request.id)
    driver.serve_again(as_if)


def unequal_drafts(driver: Driver) -> None:
    """Let two requests have unequal counts of drafts in flight, and serve their continuations."""
    if not driver.profile.drafts:
        return
    running = [one for one in (driver.prompts.plain(1), driver.prompts.plain(1)) if driver.run(one)]
    driver.drain()
    longer: list[Request] = []
    for request, count in zip(running, (1, driver.unit + 1), strict=False):
        if request.id in driver.session.live:
            drafts = driver.prompts.tokens(count)
            driver.extend(request.id, driver.prompts.tokens(1), None, drafts)
            longer.append(driver.session.live[request.id].request)
    driver.drain()
    for request in longer:
        driver.finish(request.id)
        driver.serve_again(request)


def media_reuse(driver: Driver) -> None:
    """Serve a prompt with spans, the same again, with another first and with another last span."""
    if not driver.profile.spans:
        return
    request = driver.prompts.with_spans()
    driver.serve(request)
    driver.serve_again(request)
    driver.serve_again(driver.prompts.other_span(request))
    if len(request.spans) > 1:
        driver.serve_again(driver.prompts.other_span(request, -1))


def cut_spans(driver: Driver) -> None:
    """Leave a prompt inside its spans, also where the clamp needs two rounds."""
    if not driver.profile.spans:
        return
    request = driver.prompts.with_spans()
    driver.serve(request)
    for _ in range(2):
        driver.serve(driver.prompts.fork(request))


def decode_over_media(driver: Driver) -> None:
    """Generate past a block border with spans; serve that again, and with the spans moved."""
    if not driver.profile.spans or driver.unit < 3:
        return
    request = driver.prompts.spans_in_last_block()
    if not driver.run(request):
        return
    driver.extend(request.id, driver.prompts.tokens(driver.unit))
    driver.compute_rest(request.id)
    longer = driver.session.live[request.id].request
    driver.finish(request.id)
    driver.serve_again(longer)
    moved = tuple(replace(span, start=span.start + 1) for span in longer.spans)
    if len(longer.tokens) > len(request.tokens):
        driver.serve_again(replace(longer, spans=moved))


def continue_inside(driver: Driver) -> None:
    """Leave a partial last block, go on inside it, and once more from its copy."""
    size = driver.config.block_size
    request = driver.prompts.plain(2, beyond=driver.draw(integers(1, max(1, size - 1))))
    driver.serve(request)
    for _ in range(2):
        rest = driver.prompts.tokens(driver.draw(integers(1, size)))
        longer = (request.tokens + rest)[: max(driver.prompts.longest, len(request.tokens))]
        driver.serve(Request(driver.prompts.name(), longer))


def change_an_early_span(driver: Driver) -> None:
    """Go on after a prompt with two spans in its first block, with another last or first one."""
    if not driver.profile.spans:
        return
    request = driver.prompts.early_spans()
    driver.serve(request)
    for index in (-1, 0):
        other = driver.prompts.other_span(request, index)
        driver.serve_again(replace(other, tokens=other.tokens + driver.prompts.tokens(1)))


ALL: tuple[Scenario, ...] = (
    repeat,
    resume,
    change_tenant,
    pin_under_eviction,
    reset_and_repeat,
    read_batch,
    backfill_experts,
    slide_windows,
    overlap,
    diverge,
    generate,
    shared_continuation,
    reject_drafts,
    media_reuse,
    cut_spans,
    continue_inside,
)
