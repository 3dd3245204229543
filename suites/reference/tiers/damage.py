"""Damage to a file between two reads."""

from __future__ import annotations

from collections.abc import Sequence


def damaged(data: bytes, how: str, others: Sequence[bytes]) -> bytes:
    if how.startswith("flip"):
        at = int(how.removeprefix("flip")) % len(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    if how.startswith("cut"):
        return data[: int(how.removeprefix("cut")) % len(data)]
    if how == "swap":
        return others[-1] if others else data
    return {"empty": b"", "longer": data + b"\0", "version": data[:7] + b"9" + data[8:]}[how]
