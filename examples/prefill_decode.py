"""Prefill on one engine, decode on another: requests move with their caches (C5).

python -m examples.prefill_decode

Prints for each request which engine computed its tokens, and compares its answer with that of a
single engine.
"""

from __future__ import annotations

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel

CACHE = CacheConfig(num_blocks=65, block_size=4)
NEW_TOKENS = 12
PROMPTS = tuple(tuple(range(count)) for count in (9, 30, 17))


def engine() -> Engine:
    """Return an engine with a model of its own; all models have equal weights."""
    return Engine(EngineConfig(CACHE, max_batch_tokens=16), SymbolicModel(CACHE))


def hand_over(prefill: Engine, decode: Engine) -> list[str]:
    """Move each request that has its first token; returns the names of the moved ones.

    A request without room in the second engine continues in the first one.
    """
    moved = []
    for name, request in [*prefill.scheduler.requests.items()]:
        if len(request.tokens) == len(request.prompt.tokens):
            continue
        taken = prefill.take_out(name)
        if taken is None:
            continue
        if decode.bring_in(taken) is None:
            moved.append(name)
        else:
            assert prefill.bring_in(taken) is None, "its blocks were free a moment ago"
    return moved


def serve(prefill: Engine, decode: Engine) -> dict[str, tuple[int, ...]]:
    """Answer all prompts by both engines."""
    for index, prompt in enumerate(PROMPTS):
        prefill.add_request(str(index), prompt, max_new_tokens=NEW_TOKENS)
    answers: dict[str, tuple[int, ...]] = {}
    while prefill.busy or decode.busy:
        for each in (prefill, decode):
            answers |= {out.request_id: out.tokens for out in each.step() if out.done}
        hand_over(prefill, decode)
    return answers


def main() -> None:
    """Serve with two engines and with one, and compare."""
    prefill, decode = engine(), engine()
    answers = serve(prefill, decode)
    expected = engine().generate(PROMPTS, max_new_tokens=NEW_TOKENS)
    for name, model in (("prefill", prefill.model), ("decode", decode.model)):
        assert isinstance(model, SymbolicModel)
        print(f"{name} engine: {model.computed} tokens computed")  # noqa: T201 - a program
    for name, answer in sorted(answers.items()):
        same = "equal to" if answer == expected[int(name)] else "DIFFERENT from"
        print(f"request {name}: answer {same} that of one engine")  # noqa: T201 - a program


if __name__ == "__main__":
    main()
