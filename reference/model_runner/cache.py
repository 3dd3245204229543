"""A cache of transformers whose layers read and write paged memory.

The model calls `update` of a layer with new entries and gets all that the layer sees, in the
shape that a `DynamicCache` would return. Recurrent layers find their state where transformers
keeps it, in dicts on the layer; it is put there before a forward and collected after it, because
decoding changes these tensors in place without telling the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from kvproof.reference.model_runner.batch import Batch
from kvproof.reference.model_runner.decoding import Decoding
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.page_map import ALIGNMENT, Field
from kvproof.reference.model_runner.specs import STATES, CachedLayer


class _Current:
    batch: Batch
    reader: Decoding | None = None
    """Reader of the pages in a step where a kernel reads them."""


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types here
    """Keys, values and indexer keys of one layer."""

    is_sliding = False

    def __init__(self, current: _Current, memory: PagedMemory, group: int, spec: CachedLayer):
        super().__init__()
        self._current, self._group = current, group
        self._pages = {
            part.name: memory.view(group, spec.number, part.name) for part in spec.tokens
        }
        self.is_initialized = True
        if spec.size:
            self.is_sliding, self.sliding_window = True, spec.size

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Do nothing: the memory is there."""

    def _exchange(self, name: str, new: torch.Tensor) -> torch.Tensor:
        """Write [rows, tokens, *entry]; returns all that is visible, [rows, columns, *entry]."""
        slots, pages = self._current.batch.slots(self._group), self._pages[name]
        first = slots.pages.shape[1] - new.shape[1]
        pages[slots.pages[:, first:], slots.offsets[:, first:]] = new
        return pages[slots.pages, slots.offsets]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write and read [rows, heads, tokens, width] of keys and of values.

        They are contiguous, as those of a `DynamicCache` are: a GPU chooses its kernels by strides.
        """
        if self._current.reader is not None:
            return self._current.reader.take(self._group, self._pages, keys, values)
        old = self._exchange("keys", keys.transpose(1, 2)).transpose(1, 2).contiguous()
        return old, self._exchange("values", values.transpose(1, 2)).transpose(1, 2).contiguous()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns attention sees, and the column of the first."""
        batch = self._current.batch
        visible = batch.visible(self._group)
        return visible + query_length, batch.past - visible

    def get_seq_length(self) -> int:
        """Return the columns before the segment."""
        return self._current.batch.past

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1


class PagedIndexedLayer(PagedLayer):
    """A layer that also caches the keys of its indexer."""

    def update_indexer(self, keys: torch.Tensor) -> torch.Tensor:
        """Write and read [rows, tokens, width]."""
        return self._exchange("indexer", keys)


class PagedStateLayer(LinearAttentionLayer):  # type: ignore[misc]  # transformers has no types here
    """States of one layer."""

    def __init__(self, spec: CachedLayer) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=_number_of_states(spec))

    def bind(self, states: dict[tuple[str, int], torch.Tensor]) -> None:
        """Begin a forward with these states, [rows, *shape] each; none: with no past."""
        for index in range(self.number_of_states):
            self.has_previous_state[index] = bool(states)
            for name in STATES:
                state = states.get((name, index))
                getattr(self, name)[index] = state
                getattr(self, f"is_{name}_initialized")[index] = state is not None
            conv = states.get((STATES[0], index))
            self.conv_kernel_size[index] = None if conv is None else conv.shape[-1]

    def bound(self, name: str, index: int) -> torch.Tensor:
        """Return a state as the forward has left it."""
        state: torch.Tensor = getattr(self, name)[index]
        return state


class PagedHybridLayer(PagedStateLayer, PagedLayer):
    """Attention and states side by side in one layer."""

    def __init__(self, current: _Current, memory: PagedMemory, group: int, spec: CachedLayer):
        PagedLayer.__init__(self, current, memory, group, spec)
        PagedStateLayer.__init__(self, spec)
        self.is_initialized = True

    def lazy_initialization(self, *_: Any, **states: Any) -> None:
        """Allocate states; entries are allocated already."""
        if states:
            LinearAttentionLayer.lazy_initialization(self, **states)


def _number_of_states(spec: CachedLayer) -> int:
    return 1 + max(part.place for part in spec.states)


class PagedCache(Cache):  # type: ignore[misc]  # transformers has no types here
    """Cache of a forward pass; call `bind` before it and `collect` after it."""

    def __init__(self, memory: PagedMemory, layers: tuple[CachedLayer, ...]) -> None:
        self._current, self._states = _Current(), memory.map.states
        groups = enumerate(memory.map.groups)
        group_of = {
            spec.number: index
            for index, group in groups
            for spec in group.layers
            if group.kind != "state"
        }
        super().__init__(
            layers=[
                _open(self._current, memory, group_of.get(spec.number), spec) for spec in layers
            ]
        )

    def bind(self, batch: Batch, reader: Decoding | None = None) -> None:
        """Let the layers work on a batch; with a `reader`, they only write."""
        self._current.batch, self._current.reader = batch, reader
        if not self._states:
            return
        tensors = {} if batch.fresh else _unpacked(self._states, batch.states())
        for index, layer in enumerate(self.layers):
            if isinstance(layer, PagedStateLayer):
                layer.bind({key[1:]: tensors[key] for key in tensors if key[0] == index})

    def collect(self) -> torch.Tensor:
        """Return the states after the forward, [rows, bytes]."""
        return _packed(
            [
                (field, self.layers[field.layer].bound(field.part.name, field.part.place))
                for field in self._states
            ]
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - equal in all layers
        """Return the columns before the segment, also without a layer of attention."""
        return self._current.batch.past

    @property
    def is_compileable(self) -> bool:
        """Never: a compiled forward gets a mask where a `DynamicCache` gets none."""
        return False


def _open(
    current: _Current, memory: PagedMemory, group: int | None, spec: CachedLayer
) -> CacheLayerMixin | LinearAttentionLayer:
    if group is None and spec.states:
        return PagedStateLayer(spec)
    if group is None:
        return getattr(cache_utils, "DummyLayer", LinearAttentionLayer)()
    if spec.states:
        return PagedHybridLayer(current, memory, group, spec)
    indexed = any(part.name == "indexer" for part in spec.tokens)
    return (PagedIndexedLayer if indexed else PagedLayer)(current, memory, group, spec)


def _unpacked(
    fields: list[Field], states: torch.Tensor
) -> dict[tuple[int, str, int], torch.Tensor]:
    """Cut [rows, bytes] into tensors [rows, *shape] of their own memory."""
    tensors = {}
    for layer, part, offset in fields:
        data = states[:, offset : offset + part.nbytes]
        data = data.clone(memory_format=torch.contiguous_format)  # also where one row is a view
        shape = (len(states), *part.shape)
        tensors[layer, part.name, part.place] = data.view(part.dtype).view(shape)
    return tensors


def _packed(tensors: list[tuple[Field, torch.Tensor]]) -> torch.Tensor:
    """Lay tensors [rows, *shape] side by side, [rows, bytes]."""
    last = tensors[-1][0]
    rows, device = len(tensors[0][1]), tensors[0][1].device
    size = last.offset + -(-last.part.nbytes // ALIGNMENT) * ALIGNMENT
    packed = torch.zeros((rows, size), dtype=torch.uint8, device=device)
    for field, tensor in tensors:
        data = tensor.to(field.part.dtype).contiguous().view(rows, -1).view(torch.uint8)
        packed[:, field.offset : field.offset + field.part.nbytes] = data
    return packed
