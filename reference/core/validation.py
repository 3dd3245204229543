"""Checks of settings: one error, with the value, the rule and a legal example."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any, SupportsIndex

from kvproof.reference.core.attention_groups import KINDS, GroupConfig


class ConfigError(ValueError):
    """A setting is not usable; the message gives the value, the rule and a legal example."""


def check_groups(groups: object) -> None:
    """Refuse groups that no model could have (P4)."""
    rule, example = "a tuple of groups", "(GroupConfig('full', 64),)"
    known = isinstance(groups, tuple) and all(isinstance(g, GroupConfig) for g in groups)
    require(known, "groups", groups, rule, example)
    assert isinstance(groups, tuple)
    for index, group in enumerate(groups):
        _check_group(f"groups[{index}].", group)
        _check_beside(f"groups[{index}].beside", index, groups)


def _check_beside(name: str, index: int, groups: tuple[GroupConfig, ...]) -> None:
    """Refuse a sidecar whose blocks are not those of another group (Q2)."""
    own, beside = groups[index], groups[index].beside
    if beside is None:
        return
    able = [
        place
        for place, each in enumerate(groups)
        if each.beside is None and replace(each, **_OWN) == replace(own, **_OWN)
    ]
    rule = "another group with tokens, alike but for ratio and kernel blocks, and no sidecar itself"
    whole(name, beside, least=0, example=0)
    require(beside in able and own.kind != "state", name, beside, rule, 0)


_OWN: dict[str, Any] = {"ratio": 1, "beside": None, "kernel_block_size": 0}
"""Fields in which a sidecar may differ."""


def _check_group(name: str, group: GroupConfig) -> None:
    require(group.kind in KINDS, f"{name}kind", group.kind, f"one of {', '.join(KINDS)}", "full")
    whole(f"{name}block_size", group.block_size, least=1, example=64)
    check_kernel_block_size(group.block_size, group.kernel_size, name)
    if group.kind in ("window", "chunk"):
        whole(f"{name}size", group.size, least=1, example=1024)
    else:
        rule = "0 unless the group is a window or a chunk"
        require(group.size == 0, f"{name}size", group.size, rule, 0)
    switch(f"{name}draft", group.draft, example=False)
    whole(f"{name}state_blocks", group.state_blocks, least=1, example=1)
    whole(f"{name}ratio", group.ratio, least=1, example=4)
    rule = f"a divisor of the tokens of a kernel block, {group.kernel_size}"
    require(group.kernel_size % group.ratio == 0, f"{name}ratio", group.ratio, rule, 1)
    rule = "1 for recurrent states"
    require(group.ratio == 1 or group.kind != "state", f"{name}ratio", group.ratio, rule, 1)


def check_kernel_block_size(block_size: int, kernel_block_size: int, name: str = "") -> None:
    """Refuse a kernel block size that does not divide the block size, with both numbers (K1)."""
    if is_whole(kernel_block_size, least=1) and block_size % kernel_block_size == 0:
        return
    small = [size for size in range(1, isqrt(block_size) + 1) if block_size % size == 0]
    legal = sorted({*small, *(block_size // size for size in small)})
    raise ConfigError(
        f"{name}kernel_block_size {kernel_block_size!r} must divide block_size {block_size}; "
        f"legal choices: {', '.join(map(str, legal))}"
    )


def whole(name: str, value: object, *, least: int, example: int) -> None:
    """Refuse any value but a whole number of at least `least`."""
    require(is_whole(value, least=least), name, value, f"a whole number, at least {least}", example)


def is_whole(value: object, *, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`."""
    return isinstance(value, SupportsIndex) and value.__index__() >= least


def switch(name: str, value: object, *, example: bool) -> None:
    """Refuse values other than true and false."""
    require(isinstance(value, bool), name, value, "true or false", example)


def require(ok: bool, name: str, value: object, rule: str, example: object) -> None:  # noqa: FBT001 - a condition reads best in first place
    """Raise ConfigError with the value, the rule and a legal example unless `ok`."""
    if not ok:
        raise ConfigError(f"{name} {value!r} must be {rule}, for example {example!r}")
