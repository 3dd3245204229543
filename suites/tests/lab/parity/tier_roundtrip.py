"""Blocks that moved from a tiny pool to host memory and a disk come back bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvproof.reference.tiers.below import DISK, HOST
from kvproof.suites.reference.parity.tiny_models import Writer
from kvproof.suites.tests.lab.parity.compare import ANSWER, Outcome, Subject, largest
from kvproof.suites.tests.lab.parity.prompts import longer
from kvproof.suites.tests.lab.parity.run import CHUNK, Prompt, Run, Served

LENGTH = 5 * CHUNK
"""Tokens of the longest request, nearly."""


def tiers(subject: Subject) -> Outcome:
    """Compare a tiny pool, less host memory and a disk for all with a pool for all."""
    prompts = _prompts(subject)
    large = Run(subject.model)
    expected = [large.serve([each], answer=ANSWER)[0] for each in prompts]
    with TemporaryDirectory() as folder:
        small = _small(subject, Path(folder))
        served = [small.serve([each], answer=ANSWER)[0] for each in prompts]
        assert small.engine.tiers is not None
        loaded = dict(small.engine.tiers.loaded)
        small.engine.close()
    detail = f"hits {[each.hit for each in served]}, tokens loaded {loaded}"
    missing = [tier for tier in (HOST, DISK) if not loaded.get(tier)]
    wrong = f"nothing came from {missing[0]}" if missing else _other(expected, served)
    pairs = [pair for pair in zip(expected, served, strict=True) if pair[0].hit == pair[1].hit]
    difference = max((largest(left.logits, right.logits) for left, right in pairs), default=0.0)
    return Outcome(difference, 0, wrong, detail)


def _prompts(subject: Subject) -> list[Prompt]:
    """Three interleaved conversations of two turns: every turn has to hit evicted blocks."""
    writer = Writer(8)
    first = [subject.prompt(writer, 40, 3 * CHUNK - 58 - n, seed=n) for n in range(3)]
    second = [longer(each, writer.text(CHUNK - 4)) for each in first]
    third = [longer(each, writer.text(CHUNK - 4)) for each in second]
    return [*first, *second, *reversed(third), first[1]]


def _small(subject: Subject, folder: Path) -> Run:
    """Open a pool that holds one request of `LENGTH` tokens, and a third of it as host memory."""
    layout = Run(subject.model).engine.config.cache.layout
    units = sum(
        LENGTH // config.block_size + 2 for config in layout.groups if config.kind != "state"
    )
    blocks = units + 4 * layout.state_blocks + 1
    run = Run(subject.model, num_blocks=blocks)
    size = blocks * run.model.memory.map.block_bytes // 3
    disk = (str(folder), 64 * size)
    below = {"host_tier": size, "disk_tier": disk, "weights": subject.name}
    return Run(subject.model, below=below, num_blocks=blocks)


def _other(expected: Sequence[Served], served: Sequence[Served]) -> str:
    """Return the differences other than logits."""
    for number, (left, right) in enumerate(zip(expected, served, strict=True)):
        if left.hit != right.hit:
            return f"request {number} hits {right.hit} tokens, {left.hit} in a large pool"
        if left.answer != right.answer:
            return f"request {number} is answered otherwise"
        rows = [each.experts.rows if each.experts else np.zeros(0) for each in (left, right)]
        if not np.array_equal(rows[0], rows[1]):
            return f"request {number} has other rows of experts"
    return ""
