"""Tensors of a decode launch besides its arguments; made once, used by launches in turn."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.checks import require
from kvproof.kernels.latent.launch import KEYS, VALUES, cut
from kvproof.kernels.paged_decode import rules


class Workspace(NamedTuple):
    """Room for the parts of requests that several programs share.

    A launch leaves it as it was made, so it serves any number of launches of one stream, also
    replayed ones; launches that may overlap need one each.
    """

    arrivals: torch.Tensor
    """int32, zero before and after a launch."""
    parts: torch.Tensor
    norms: torch.Tensor


class Room(NamedTuple):
    """How many numbers a launch needs of each tensor of its workspace."""

    arrivals: int
    parts: int
    norms: int


def room(shape: rules.Shape, chosen: rules.Config, *, processors: int) -> Room:
    """Room for a launch of this shape; lengths and page ids do not matter."""
    places = rules.places(shape, chosen, processors=processors)
    rows = places * rules.part_rows(shape, rows=chosen.rows)
    return Room(2 * places, rows * shape.value_dim, rows)


def latent_room(shape: rules.Shape, *, processors: int) -> Room:
    """Room for the kernel for wide latent heads; none where it takes no part."""
    if not shape.latent or (shape.head_dim, shape.value_dim) != (KEYS, VALUES):
        return Room(0, 0, 0)
    rows = cut(shape.rows, processors=processors).part_rows
    return Room(0, rows * VALUES, rows)


def workspace(
    shape: rules.Shape, *, device: torch.device, config: rules.Config | None = None
) -> Workspace:
    """A workspace for launches of a shape, of any batch.

    It does not depend on lengths or on the width of the block table. For a CUDA graph, make the
    tables as wide as the longest request needs *kernel* blocks, -(-tokens // page), and capture
    once: the launch reads the lengths on the device and shares the work out anew in every replay.
    `config` is that of the launches, if they do not go by the rules.
    """
    chosen = config or rules.config(shape)
    processors = rules.processors(device)
    needs = (
        room(shape, chosen, processors=processors),
        latent_room(shape, processors=processors),
    )
    need = Room(*map(max, *needs))
    return Workspace(
        torch.zeros(need.arrivals, dtype=torch.int32, device=device),
        torch.empty(need.parts, dtype=torch.float32, device=device),
        torch.empty(need.norms, dtype=torch.float32, device=device),
    )


def check_room(given: Workspace, need: Room) -> None:
    """Raise `ArgumentError` if a workspace is too small."""
    for name, tensor, least in zip(Room._fields, given, need, strict=True):
        require(
            tensor.numel() >= least,
            f"workspace.{name} has {tensor.numel()} numbers, this launch needs {least};"
            " make it for the shape of the launch",
        )
