"""Recovery from a step that raised: abort its requests, and end it in the cache manager."""

from __future__ import annotations

import contextlib

from kvproof.reference.engine.engine import Engine


def abandon(engine: Engine) -> list[str]:
    """Cancel every request of the steps in flight; returns their ids.

    A cancelled request indexes nothing when its step ends, so nothing half computed is ever
    reused. The model ends the steps that it did begin before their blocks are handed out (B6).
    """
    scheduler = engine.scheduler
    scheduled = [each for step in scheduler.steps.values() for each in step]
    failed = [each.request.id for each in scheduled if each.current]
    for request_id in failed:
        engine.cancel(request_id)
    for step in list(scheduler.steps):
        with contextlib.suppress(Exception):  # the model may be what failed
            engine.model.finish(step)
        scheduler.complete(step, {})
    return failed
