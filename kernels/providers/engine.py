"""Common functions of the adapters: find an engine, and convert to its forms."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch

from kvproof.kernels.spec import Arguments, Case, Launch


class Engine(NamedTuple):
    """An engine with adapted kernels: its name, its distribution, the tested version."""

    name: str
    distribution: str
    tested: str

    def version(self) -> str:
        """The installed version. Raises ImportError if the engine is not installed here."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            raise ImportError(
                f"{self.name} is not installed in this environment; its kernels are known from"
                f" {self.tested}: pip install {self.distribution}=={self.tested}"
            ) from None

    def load(self, module: str, name: str) -> Any:
        """A function of the engine. Raises ImportError if the installed version lacks it."""
        try:
            return getattr(import_module(module), name)
        except AttributeError:
            raise ImportError(
                f"{self.name} {self.version()} has no {name} in {module}; {self.tested} has it"
            ) from None


def uneven_scales(case: Case) -> bool:
    """Whether FP8 keys and values have a scale for each head, not one for the tensor."""
    return case.get("kv_dtype", case.get("cache")) == "fp8" and case.get("scales") != "tensor"


def is_power(value: int) -> bool:
    """Whether a number is a power of two."""
    return value > 0 and value & (value - 1) == 0


def allocating(tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A view of `tensor` whose `new_empty` with the shape and dtype of `out` returns `out` itself.

    Some engines allocate their result with `tensor.new_empty`. With this view they write to the
    output, and no additional copy is timed.
    """
    view = tensor.view(tensor.shape)
    allocate = view.new_empty

    def new_empty(*size: Any, **options: Any) -> torch.Tensor:
        made = allocate(*size, **options)
        return out if (made.shape, made.dtype) == (out.shape, out.dtype) else made

    view.__dict__["new_empty"] = new_empty
    return view


def into(out: torch.Tensor, result: torch.Tensor) -> None:
    """Copy a result to the output, unless it is there already."""
    if result.data_ptr() != out.data_ptr():
        out.copy_(result)


def values_of(arguments: Arguments) -> torch.Tensor:
    """The pages of the values; those of a latent cache are the leading columns of its keys."""
    if arguments["v_pages"] is not None:
        pages: torch.Tensor = arguments["v_pages"]
        return pages
    keys: torch.Tensor = arguments["k_pages"]
    return keys[..., : arguments["out"].shape[-1]]


def value_scale(arguments: Arguments) -> torch.Tensor | None:
    """The scale of the values; for a latent cache that of its keys."""
    found: torch.Tensor | None
    found = arguments["k_scale" if arguments["v_pages"] is None else "v_scale"]
    return found


def number(scale: torch.Tensor | None) -> float:
    """The single scale of a tensor as a number; 1 without a scale."""
    return 1.0 if scale is None else float(scale.flatten()[0])


def decode_as_prefill(arguments: Arguments) -> Arguments:
    """Convert a decode to a prefill; the tokens of a request are its chunk."""
    batch, tokens = arguments["q"].shape[:2]
    starts = torch.arange(batch + 1, dtype=torch.int32, device=arguments["q"].device) * tokens
    return {
        **arguments,
        "q": arguments["q"].flatten(0, 1),
        "out": arguments["out"].flatten(0, 1),
        "query_starts": starts,
        "longest_query": tokens,
        "longest": int(arguments["lengths"].max()),
    }


def only_requests_with_tokens(
    prepare: Callable[[Case, Arguments], Launch],
) -> Callable[[Case, Arguments], Launch]:
    """A decode without requests of length 0: no engine sends them to its kernel.

    Their rows of `out` are zeros. Other batches are unchanged.
    """

    def prepared(case: Case, arguments: Arguments) -> Launch:
        lengths, out = arguments["lengths"], arguments["out"]
        if bool((lengths > 0).all()):
            return prepare(case, arguments)
        kept, empty = (where.nonzero().flatten() for where in (lengths > 0, lengths == 0))
        named = ("q", "block_table", "lengths", "out")
        sent = {**arguments, **{name: arguments[name][kept] for name in named}}
        launch = prepare(case, sent)

        def run() -> None:
            launch()
            out.index_copy_(0, kept, sent["out"])
            out.index_fill_(0, empty, 0)

        return run

    return prepared


class Tokens(NamedTuple):
    """Tokens of all requests: request r has slots[starts[r]:starts[r+1]].

    A slot is page * page size + offset. `starts` is int32 [batch + 1], `slots` int64.
    """

    starts: torch.Tensor
    slots: torch.Tensor


def tokens_of(
    block_table: torch.Tensor, first: torch.Tensor, stop: torch.Tensor, *, page_size: int
) -> Tokens:
    """The positions first[r] <= p < stop[r] of each request."""
    rows = zip(block_table, first.tolist(), stop.tolist(), strict=True)
    slots = [_slots(row, low, high, page_size) for row, low, high in rows]
    starts = torch.zeros(len(first) + 1, dtype=torch.int32, device=first.device)
    starts[1:] = (stop - first).cumsum(0)
    return Tokens(starts, torch.cat(slots))


def _slots(row: torch.Tensor, first: int, stop: int, page_size: int) -> torch.Tensor:
    at = torch.arange(first, stop, device=row.device)
    return row[at // page_size].long() * page_size + at % page_size


def slots_to_fill(arguments: Arguments, *, page_size: int) -> torch.Tensor:
    """The slot of each new token of a fill, int64, without the padding at the end."""
    if arguments["slots"] is not None:
        given: torch.Tensor = arguments["slots"].long()
        return given
    starts = arguments["starts"]
    stop = starts + arguments["query_starts"].diff()
    return tokens_of(arguments["block_table"], starts, stop, page_size=page_size).slots
