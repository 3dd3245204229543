"""Values of a history that no engine could take: a log with one is wrong, not its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from msgspec import ValidationError

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.model.visibility import KINDS

MOST_BLOCKS = 1 << 22
"""Blocks of a pool, rows of states, tokens of a block: more would be a test of the memory."""

MOST_GROUPS = 256
"""Groups of layers; no published model has a tenth of them."""

LARGEST = (1 << 31) - 1
"""Largest token, position and count: engines keep them in 32 bits."""


def check(config: TargetConfig, operations: Sequence[ops.Operation]) -> None:
    """Raise msgspec.ValidationError for the first impossible value, with its name."""
    if len(config.groups) > MOST_GROUPS:
        raise ValidationError(f"it has {len(config.groups):,} groups, at most {MOST_GROUPS}")
    _check_sizes(config)
    for number, operation in enumerate(operations):
        for name, value in _numbers(operation, ops.name(operation)):
            where = f"{name} of operation {number} is {_short(value)}"
            least = 1 if name.endswith(".compute") else 0
            if not least <= value <= LARGEST:
                raise ValidationError(f"{where}, not within {least} and {LARGEST}")


def _check_sizes(config: TargetConfig) -> None:
    for name, value in _numbers(config, "config"):
        least = {"config.num_blocks": 2}.get(name, 1 if name.endswith(".block_size") else 0)
        least = 1 if name.endswith(".state_blocks") else least
        if not least <= value <= MOST_BLOCKS:
            raise ValidationError(
                f"{name} is {_short(value)}, not within {least} and {MOST_BLOCKS}"
            )
    for group in config.layout:
        if group.kind not in KINDS:
            raise ValidationError(f"the kind of a group is {group.kind!r}: {', '.join(KINDS)}")
        if group.block_size % group.kernel_size:
            parts = f"{group.block_size} is no multiple of its kernel_block_size"
            raise ValidationError(f"a block_size of {parts} {group.kernel_size}")


def _numbers(value: object, name: str) -> Iterator[tuple[str, int]]:
    """Return every integer of a record with its path."""
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers(item, name)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def _short(value: int) -> str:
    """Write a number; one of many digits by their count."""
    bits = value.bit_length()
    return str(value) if bits <= 128 else f"a number of {bits} bits"
