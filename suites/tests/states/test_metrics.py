"""How the suite `metrics` reads the log."""

from __future__ import annotations

import logging

from kvproof.suites.reference.metrics.log import captured


def test_a_logger_is_left_as_it_was(caplog):
    logger = logging.getLogger("kvproof.reference")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with captured(logger) as lines:
        logger.debug("evict %d", 3)
    logger.debug("nobody hears this")
    assert lines == ["evict 3"]
    assert (logger.level, logger.propagate, logger.handlers) == before
    assert caplog.records == []
