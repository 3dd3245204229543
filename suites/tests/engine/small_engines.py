"""Engines of a symbolic model over few blocks, and questions to them."""

from __future__ import annotations

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel

SIZE = 4


def make_engine(num_blocks=64, groups=(), *, budget=8192, steps=1, drafts=0, **cache):
    config = CacheConfig(num_blocks, block_size=SIZE, groups=groups, **cache)
    options = EngineConfig(config, budget, steps, drafts)
    return Engine(options, SymbolicModel(config))


def run(engine):
    """Answer everything; returns whole answers by request."""
    done = {}
    while engine.busy:
        done |= {output.request_id: output.tokens for output in engine.step() if output.done}
        assert not engine.stuck
    return done


def decided(engine, verb):
    return [(d.step, d.request_id, *d.detail) for d in engine.decisions() if d.verb == verb]


def ask(engine, name, length, new=1, **options):
    return engine.add_request(name, [1] * length, max_new_tokens=new, **options)
