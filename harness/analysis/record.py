"""`comparison.json`: a comparison for other programs."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.harness.analysis.compare import Comparison, Row
from kvproof.harness.analysis.verdicts import VerdictChange

SCHEMA_VERSION = 1


def comparison_json(found: Comparison) -> bytes:
    """The comparison as formatted JSON; ratios without a value are null."""
    whole = {
        "schema": SCHEMA_VERSION,
        "exit_code": int(found.code),
        "base": [str(run.directory) for run in found.base],
        "head": [str(run.directory) for run in found.head],
        "settings": msgspec.to_builtins(found.settings),
        "differences": [each._asdict() for each in found.differences],
        "unfinished": [str(run.directory) for run in found.unfinished],
        "refused": list(found.refused),
        "verdicts": [_verdict(each) for each in found.verdicts],
        "counts": dict(found.counts),
        "rows": [_row(row) for row in found.rows],
        "only_base": found.only_base,
        "only_head": found.only_head,
    }
    return msgspec.json.format(msgspec.json.encode(whole)) + b"\n"


def _verdict(each: VerdictChange) -> dict[str, Any]:
    fields = {"base": each.base._asdict(), "head": each.head._asdict(), "trend": each.trend}
    return {**each.subject._asdict(), **fields}


def _row(row: Row) -> dict[str, Any]:
    fields = row._asdict()
    key, found = fields.pop("key"), fields.pop("found")
    measured = found._asdict() if found else {}
    ratio = row.ratio if row.ratio != float("inf") else None
    return {**key._asdict(), **fields, **measured, "ratio": ratio}
