"""Experts chosen by a forward pass (R1), and passes with prescribed experts (R4).

Every expert block of transformers is called with the ids that its router chose. A hook before it
reads them, for any router formula and any implementation of the experts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

ARGUMENTS = ("top_k_index", "router_indices")
"""Parameter names for these ids in expert blocks."""


class MissingRouter(RuntimeError):
    """A recorded choice cannot be replayed: no router took it."""


class Block(NamedTuple):
    """One layer's experts."""

    module: Any
    position: int
    """Position of the ids among the arguments of its forward."""
    argument: str
    choices: int
    router: Any
    """The module whose forward chooses."""


def expert_blocks(model: Any) -> list[Block]:
    """Return the blocks of experts in the order of layers."""
    modules = dict(model.named_modules())
    blocks = []
    for name, module in modules.items():
        arguments = list(inspect.signature(module.forward).parameters)
        named = next((each for each in ARGUMENTS if each in arguments), None)
        if named:
            parent = modules[name.rpartition(".")[0]]
            place = arguments.index(named)
            blocks.append(Block(module, place, named, _count(module), _router(parent, module)))
    return blocks


def _count(experts: Any) -> int:
    """Return how many experts a block has; its first weight has one slice for each."""
    return int(getattr(experts, "num_experts", None) or next(experts.parameters()).shape[0])


def _router(parent: Any, experts: Any) -> Any:
    """Return the sibling that chooses, else the parent."""
    for name, child in parent.named_children():
        if child is not experts and (hasattr(child, "top_k") or name in ("gate", "router")):
            return child
    return parent


class ExpertsRecorder:
    """Keeps the ids of the last forward, while it is open."""

    def __init__(self, model: Any) -> None:
        self.blocks = expert_blocks(model)
        self._ids: list[torch.Tensor | None] = [None] * len(self.blocks)
        self._handles: list[Any] = []

    def __enter__(self) -> ExpertsRecorder:
        for layer, block in enumerate(self.blocks):
            hook = self._hook(layer, block)
            self._handles.append(block.module.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, layer: int, block: Block) -> Any:
        def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = kwargs.get(block.argument)
            self._ids[layer] = args[block.position] if given is None else given

        return keep

    def rows(self, batch: int, tokens: int) -> torch.Tensor:
        """Return the ids of the last forward: [batch, tokens, layers, ranks], int64."""
        ids = [each.reshape(batch, tokens, -1) for each in self._ids if each is not None]
        if len(ids) < len(self.blocks):
            raise MissingRouter(f"{len(ids)} of {len(self.blocks)} blocks of experts were called")
        return torch.stack(ids, dim=2).to(torch.int64)

    def form(self, tokens: int) -> tuple[int, int, int]:
        """Return experts to choose from, layers and ranks, after a forward of one request."""
        if not self.blocks:
            return 0, 0, 0
        rows = self.rows(1, tokens)
        return max(block.choices for block in self.blocks), rows.shape[2], rows.shape[3]


class _Choose(TorchFunctionMode):  # type: ignore[misc]  # torch has no types here
    """Answers the top-k over all experts with given ids; the model computes the weights.

    A router that first ranks groups of experts asks twice if all experts are one group: then the
    first answer changes nothing, because there is no other group.
    """

    def __init__(self, ids: torch.Tensor, experts: int) -> None:
        super().__init__()
        self._ids, self._experts = ids, experts
        self.answered = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") != "topk":
            return result
        scores = args[0] if args else kwargs["input"]
        if scores.shape[-1] != self._experts or result[1].shape[-1] != self._ids.shape[-1]:
            return result
        self.answered += 1
        ids = self._ids.reshape(result[1].shape)
        return type(result)((scores.gather(-1, ids), ids))


@contextmanager
def replayed(model: Any, rows: torch.Tensor) -> Iterator[None]:
    """Route the forwards inside by `rows` [batch, tokens, layers, ranks] (R4).

    Raises MissingRouter if some router did not choose through a top-k over all experts.
    """
    blocks = expert_blocks(model)
    originals = [block.router.forward for block in blocks]
    try:
        for layer, block in enumerate(blocks):
            block.router.forward = _forced(block, rows[:, :, layer])
        yield
    finally:
        for block, original in zip(blocks, originals, strict=True):
            block.router.forward = original


def _forced(block: Block, rows: torch.Tensor) -> Any:
    original = block.router.forward
    ids = rows.reshape(-1, rows.shape[-1]).to(next(block.module.parameters()).device)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _Choose(ids, block.choices) as mode:
            result = original(*args, **kwargs)
        if not mode.answered:
            raise MissingRouter(
                f"{type(block.router).__name__} takes no top-k over its {block.choices} experts: "
                "its choice cannot be replayed"
            )
        return result

    return forward
