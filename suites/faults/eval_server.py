"""`kvproof serve` with a cache fault, to check that an evaluation finds it.

python -m kvproof.suites.faults.eval_server stale-state serve --model FOLDER ...

A fault replaces a few lines of one module at import. `none` changes nothing. `tenant` changes
nothing either, but another tenant first requests the same documents with an adapter that reads
every word as another one; only the namespace separates the two. `namespace` is that with the
namespace ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.run.generator import generate
from kvproof.harness.errors import UsageError
from kvproof.suites.faults import situated
from kvproof.suites.faults.planting import Edit, plant


class Fault(NamedTuple):
    """A wrong behaviour, in words and in code."""

    what: str
    edits: tuple[Edit, ...] = ()


_TENANT_FIRST = Edit(
    "harness.cli.actions.serving.serve",
    "    _run(built, config, bound, ",
    "    from kvproof.suites.faults.eval_server import ask_for_tenant\n\n"
    "    ask_for_tenant(built)\n"
    "    _run(built, config, bound, ",
)
"""Another tenant sends requests before the server is ready."""


def _wrong_block(every: int) -> tuple[Edit, ...]:
    """Every so-many-th hit reads the blocks of the hit before it."""
    return (
        Edit(
            "reference.cache.allocator",
            "request.table = node.table()\n",
            "request.table = own = node.table()\n"
            "        if own:\n"
            "            self.turn = getattr(self, 'turn', 0) + 1\n"
            "            other, self.other = getattr(self, 'other', own), own[:]\n"
            f"            if self.turn % {every} == 0:\n"
            "                own[: len(other)] = other[: len(own)]\n",
        ),
    )


def _situated(name: str) -> Fault:
    """A fault of one situation."""
    return Fault(
        f"a hit has a wrong last block: {name}",
        (
            Edit(
                "reference.cache.allocator",
                "request.table = node.table()\n",
                "request.table = node.table()\n"
                "        from kvproof.suites.faults.situated import strike\n\n"
                f"        strike(self, request, request.table, self._pool.num_free, {name!r})\n",
            ),
        ),
    )


TWINS = Fault(
    "of two equal prompts in one step, one gets its blocks in the wrong order",
    (
        Edit(
            "reference.cache.allocator",
            "each.node.blocks[first : first + len(own)]\n",
            "each.node.blocks[first : first + len(own)][::-1]\n",
        ),
    ),
)

FAULTS = {
    "none": Fault("nothing"),
    "tenant": Fault("nothing, with another tenant's entries in the cache", (_TENANT_FIRST,)),
    "wrong-block": Fault(
        "a hit reads the blocks of the request that hit before it",
        (
            Edit(
                "reference.cache.allocator",
                "request.table = node.table()\n",
                "request.table = own = node.table()\n"
                "        if own:\n"
                "            other, self.other = getattr(self, 'other', own), own[:]\n"
                "            own[: len(other)] = other[: len(own)]\n",
            ),
        ),
    ),
    "wrong-block-8": Fault("wrong-block in one hit of 8", _wrong_block(8)),
    "wrong-block-30": Fault("wrong-block in one hit of 30", _wrong_block(30)),
    "stale-state": Fault(
        "a hit goes on from the recurrent state that was restored before",
        (
            Edit(
                "reference.model_runner.runner",
                "lines = [(running, checkpoint, None) for checkpoint, running in restores]\n",
                "stale = [getattr(self, 'stale', None), *(source for source, _ in restores)]\n"
                "        self.stale = stale[-1]\n"
                "        lines = [\n"
                "            (running, checkpoint if old is None else old, None)\n"
                "            for old, (checkpoint, running) in zip(stale, restores, strict=False)\n"
                "        ]\n",
            ),
        ),
    ),
    "namespace": Fault(
        "requests of another namespace, with another adapter, are hit",
        (
            Edit(
                "reference.cache.cache_manager",
                "request.id, request.tokens, request.namespace, request.spans, self._unit",
                "request.id, request.tokens, DEFAULT_NAMESPACE, request.spans, self._unit",
            ),
            _TENANT_FIRST,
        ),
    ),
    "position": Fault(
        "a hit ends one block too late, after the position where two texts part",
        (
            Edit(
                "reference.core.identity",
                "return equal * TOKEN_BYTES // stride",
                "return -(-equal * TOKEN_BYTES // stride)",
            ),
        ),
    ),
    "kernel-block": Fault(
        "all kernel blocks of a block are its first one",
        (
            Edit(
                "reference.core.block_table",
                "np.arange(ratio, dtype=np.int32)",
                "np.zeros(ratio, dtype=np.int32)",
            ),
        ),
    ),
}
FAULTS |= {f"at-{name}": _situated(name) for name in situated.FAULTS} | {"at-twins": TWINS}


def ask_for_tenant(built: Any) -> None:
    """Compute the documents of the generated set in a namespace of its own.

    `built` has the `engine` and the `language` of a server that is about to start.
    """
    from kvproof.reference.core.identity import Namespace
    from kvproof.reference.server.language.language import Chat, Message, Part

    prompts, engine = own_prompts(), built.engine
    with _adapted(built.language):
        for number, sample in enumerate(generate().samples):
            message = Message("user", (Part(prompts.render(sample)),))
            tokens = built.language.prepare_chat(Chat((message,))).tokens
            engine.add_request(
                str(number), tokens, max_new_tokens=1, namespace=Namespace(adapter="tenant")
            )
            while engine.busy:
                engine.step()


@contextmanager
def _adapted(language: Any) -> Iterator[None]:
    """Read every word as the one before it in the vocabulary. Raises UsageError."""
    network = getattr(language.model, "_model", None)
    if network is None:
        raise UsageError("a tenant needs a model with weights", "give --model FOLDER")
    weight = network.get_input_embeddings().weight
    kept = weight.data.clone()
    weight.data.copy_(kept.roll(1, 0))
    try:
        yield
    finally:
        weight.data.copy_(kept)


def main(arguments: Sequence[str]) -> None:
    """Plant a fault and run the command line."""
    name, *rest = arguments or [""]
    if name not in FAULTS:
        sys.exit(f"there is no fault {name!r}: one of {', '.join(FAULTS)}")
    for edit in FAULTS[name].edits:
        plant(edit)
    (command,) = entry_points(group="console_scripts", name="kvproof")
    try:
        command.load()(rest)
    finally:
        if name.startswith("at-"):
            sys.stderr.write(f"struck {situated.counted()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
