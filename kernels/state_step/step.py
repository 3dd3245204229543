"""One step of either rule: its tensors and their check, for the kernel and for plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvproof.kernels.checks import (
    dtype_of,
    ids_in_range,
    require,
    same_device,
    shape_of,
)

WIDE = (torch.bfloat16, torch.float16, torch.float32)
MOST_KEY = 256
"""A program holds whole rows of a state in registers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A decode step: for each token of a request, state = decay * state + update outer key.

    Gated delta rule: decay = exp(decays), update = strengths * (v - decayed state @ key). Mamba2
    (`delta` is false): time = softplus(strengths + bias), decay = exp(time * decays), update =
    time * v. Both: out = state @ query * scale (+ skips * v).
    """

    q: torch.Tensor
    """[tokens, heads, key size]; C of Mamba2."""
    k: torch.Tensor
    """Like `q`; B of Mamba2."""
    v: torch.Tensor
    """[tokens, value heads, value size]; x of Mamba2."""
    decays: torch.Tensor
    """[tokens, value heads], natural logarithms; of Mamba2 [value heads], A."""
    strengths: torch.Tensor
    """[tokens, value heads]; beta of the delta rule, dt of Mamba2."""
    states: torch.Tensor
    """[rows, value heads, value size, key size]."""
    sources: torch.Tensor
    rows: torch.Tensor
    query_starts: torch.Tensor | None
    out: torch.Tensor
    delta: bool
    scale: float = 1.0
    normalised: bool = False
    bias: torch.Tensor | None = None
    skips: torch.Tensor | None = None

    @property
    def heads(self) -> tuple[int, int]:
        """Number of heads of keys and of values."""
        return self.q.shape[1], self.v.shape[1]

    def starts(self) -> torch.Tensor:
        """Query starts, given or not."""
        if self.query_starts is not None:
            return self.query_starts
        return torch.arange(len(self.sources) + 1, device=self.sources.device)

    def longest(self) -> int:
        """Tokens of the longest request; waits for the device."""
        return int(self.starts().diff().max())

    def check(self) -> None:
        """Raise ArgumentError unless the tensors fit each other; reads no values."""
        shape_of("out", self.out, (None, None, None))
        shape_of("states", self.states, (None, None, None, None))
        tokens, value_heads, value = self.out.shape
        key = self.states.shape[3]
        require(0 < key <= MOST_KEY, f"key size is {key}, expected 1 to {MOST_KEY}")
        shape_of("states", self.states, (None, value_heads, value, key))
        shape_of("keys", self.k, (tokens, None, key))
        heads = self.k.shape[1]
        require(
            value_heads % max(1, heads) == 0 < heads,
            f"{value_heads} heads of values, {heads} of keys: expected a multiple",
        )
        shape_of("queries", self.q, (tokens, heads, key))
        shape_of("values", self.v, (tokens, value_heads, value))
        self._check_numbers(tokens, value_heads)
        self._check_lists()
        same_device(**self._tensors())

    def check_values(self) -> None:
        """Raise ArgumentError for rows that do not exist or race; waits for the device."""
        count = len(self.states)
        ids_in_range("sources", self.sources[self.sources > 0], low=1, high=count)
        written = self.rows[(self.rows > 0) & (self.sources > 0)[:, None]]
        ids_in_range("rows", written, low=1, high=count)
        ids, times = written.unique(return_counts=True)
        twice = ids[times > 1].tolist()
        require(not twice, f"rows holds {twice} more than once")
        others = (self.sources[:, None, None] == self.rows[None]) & (self.rows > 0)[None]
        others &= ~torch.eye(len(self.sources), dtype=torch.bool, device=ids.device)[:, :, None]
        both = self.sources[(others.flatten(1).any(1)) & (self.sources > 0)].tolist()
        require(not both, f"sources {both} are rows of other requests, which race")
        starts = self.starts()
        require(
            int(starts[0]) == 0 and bool((starts.diff() >= 0).all()),
            f"query_starts is {starts.tolist()}: it must begin with 0 and never fall",
        )
        ids_in_range("query_starts", starts, low=0, high=len(self.out) + 1)

    def _check_numbers(self, tokens: int, value_heads: int) -> None:
        per_token = (tokens, value_heads)
        shape_of("strengths", self.strengths, per_token)
        shape_of("decays", self.decays, per_token if self.delta else per_token[1:])
        for name in ("bias", "skips"):
            if (given := getattr(self, name)) is not None:
                shape_of(name, given, (value_heads,))
        for name, tensor in self._tensors().items():
            if name not in ("sources", "rows", "query_starts"):
                dtype_of(name, tensor, WIDE)
                inner = tensor[0] if len(tensor) and tensor.dim() > 1 else tensor
                require(
                    inner.is_contiguous(),
                    f"{name} has strides {tensor.stride()}: all but the first dimension must be"
                    " contiguous",
                )

    def _check_lists(self) -> None:
        batch = len(self.sources)
        shape_of("sources", self.sources, (batch,))
        shape_of("rows", self.rows, (batch, None))
        lists = {"sources": self.sources, "rows": self.rows}
        if self.query_starts is None:
            shape_of("out", self.out, (batch, *self.out.shape[1:]))
        else:
            shape_of("query_starts", self.query_starts, (batch + 1,))
            lists["query_starts"] = self.query_starts
        for name, tensor in lists.items():
            dtype_of(name, tensor, (torch.int32, torch.int64))
            require(tensor.is_contiguous(), f"{name} has strides {tensor.stride()}, expected rows")

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {name: each for name, each in vars(self).items() if isinstance(each, torch.Tensor)}
