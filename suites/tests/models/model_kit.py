"""Tiny models for the tests of the runner, built once, and ways to run them."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the extra hf is not installed")
transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

from kvproof.reference.engine.engine import Engine  # noqa: E402 - needs what is skipped above
from kvproof.reference.engine.engine_config import EngineConfig  # noqa: E402
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config  # noqa: E402
from kvproof.suites.reference.parity.tiny_models import Writer  # noqa: E402
from kvproof.suites.tests.lab.parity.job import subject  # noqa: E402

BLOCK, CHUNK = 16, 32

shared = cache(subject)
"""A family's tiny model in float32; the tests of a process share it."""


def text(count, seed=0):
    return Writer(seed).text(count)


def open_engine(family, *, mode="exact", choose=None, chunk=CHUNK, poison=True, **options):
    """Return an engine on a tiny model, and the logits that it computes by request."""
    model = shared(family).model
    settings = {"num_blocks": 200, "block_size": BLOCK, "kernel_block_size": 4, **options}
    config = cache_config(model, **settings)
    logits = {}

    def keep(name, start, values):
        logits.setdefault(name, []).append((start, values))

    runner = HuggingFaceModel(model, config, mode=mode, on_logits=keep, choose=choose)
    engine = Engine(EngineConfig(config, chunk, poison_freed=poison), runner)
    return engine, logits


def serve(engine, name, tokens, *, new=4):
    """Answer one request alone; returns its tokens."""
    assert engine.add_request(name, tokens, max_new_tokens=new) is None
    answer = ()
    while engine.busy:
        for output in engine.step():
            answer = output.tokens
        assert not engine.stuck
    return answer
