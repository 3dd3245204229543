"""How a launch is shaped: from the shapes of a problem and the size of the GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvproof.kernels.backend import power_below

UNIT = 16
"""Tokens in the unit that work is shared out by; no tile and no page need be a multiple of it."""

MOST_QUERY_TOKENS = 32
MOST_ROWS = 32
"""Query rows of a KV head that a program holds."""

MOST_HEAD_DIM = 1024


class Shape(NamedTuple):
    """Facts that decide about a launch, besides the lengths, which only the device knows."""

    batch: int
    q_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    kv_bits: int
    """Bits of one number of the cache."""
    latent: bool
    """Values are the first columns of the keys."""

    @property
    def rows(self) -> int:
        """Query rows that read one KV head."""
        return self.q_tokens * (self.heads // self.kv_heads)


class Columns(NamedTuple):
    """A row of the cache in 16-bit words, as one power of two and the remainder."""

    words: int
    main: int
    rest: int


class Config(NamedTuple):
    """How a launch is shaped."""

    rows: int
    """Query rows of a program; a power of two, at least 16 for the matrix units."""
    tile: int
    """Tokens that a program reads at once."""
    warps: int
    stages: int
    residents: int
    """Programs that run on one multiprocessor at a time."""
    part_step: int
    """Parts of a request that are combined at once."""
    row_step: int
    """Query rows whose parts are combined at once."""
    fan: int = 64
    """Parts that one program combines, before others combine what these have combined."""
    least_units: int = 4
    """Units below which a chunk is not worth a program."""
    pdl: int = 1
    """When the next kernel may start, where the GPU has programmatic dependent launch: 0 after
    this one, 1 as soon as there is room for both, 2 when its programs have read their tokens."""
    ahead: int = 1
    """Tiles that are asked for before the kernel before has ended, if the tables are ready."""
    registers: int | None = None
    """Most registers of a thread."""


def kv_bits(pages: torch.Tensor) -> int:
    """Bits of one number of pages; those of INT4 are bytes of two."""
    return 4 if pages.dtype == torch.uint8 else 8 * pages.dtype.itemsize


def columns(width: int, *, kv_bits: int) -> Columns:
    """How rows of `width` elements are cut: 192 is 128 and 64."""
    words = width * kv_bits // 16
    main = max(16, 1 << (words.bit_length() - 1))
    left = max(0, words - main)
    return Columns(words, main, max(16, power_of_two(left)) if left else 0)


def value_columns(width: int, *, kv_bits: int) -> Columns:
    """Likewise, in pieces of 32 or more: as wide as 16 query rows, every warp would do all."""
    cut = columns(width, kv_bits=kv_bits)
    if cut.main < _VALUES:
        return Columns(cut.words, _VALUES, 0)
    return cut._replace(rest=max(cut.rest, _VALUES) if cut.rest else 0)


def power_of_two(number: int) -> int:
    """The least power of two that is not below the number."""
    return 1 << max(0, number - 1).bit_length()


def config(shape: Shape) -> Config:
    """The shape of a launch: what a multiprocessor reads at once is 64 KiB, whatever the page.

    A tile of keys is 32 KiB in one program of 8 warps, or 16 KiB in each of two of 4 warps, which
    hide each other's reductions; narrow rows of bytes leave room for three.
    """
    rows = min(MOST_ROWS, max(16, power_of_two(shape.rows)))
    keys = columns(shape.head_dim, kv_bits=shape.kv_bits)
    row_bytes = 2 * (keys.main + keys.rest)
    heavy = row_bytes > _LIGHT_ROW or rows * shape.value_dim > _LIGHT_NUMBERS
    narrow = shape.kv_bits < 16 and row_bytes <= _LIGHT_ROW // 2 and not heavy
    most = _LIGHT_TILE if shape.kv_bits < 16 else 2 * _LIGHT_TILE
    tile = power_below((2 if heavy else 1) * _TILE_BYTES // row_bytes)
    least = 32 if shared_bytes(32, row_bytes, rows, kv_bits=shape.kv_bits) <= _SHARED else 16
    row_step = min(_PART_ROWS, part_rows(shape, rows=rows))
    chosen = Config(
        rows=rows,
        tile=min(most, max(least, tile)),
        warps=8 if heavy else 4,
        stages=3,
        residents=1 if heavy else 3 if narrow else 2,
        part_step=min(_PARTS, max(1, _PART_NUMBERS // (row_step * power_of_two(shape.value_dim)))),
        row_step=row_step,
        registers=168 if narrow else None,
    )
    if shape.kv_bits < 8 and rows == _FEW_ROWS and narrow:
        # INT4 takes more time to widen than to read: many tokens at once, all registers in use.
        residents = 4 if row_bytes <= 32 else 3 if row_bytes <= 64 else 2
        registers = {2: None, 3: 168, 4: 128}[residents]
        return chosen._replace(tile=2 * _LIGHT_TILE, residents=residents, registers=registers)
    return chosen


def shared_bytes(tile: int, row_bytes: int, rows: int, *, kv_bits: int) -> int:
    """Bytes of two tiles of keys and two of values in flight, and of 16-bit queries."""
    return 4 * tile * row_bytes + rows * row_bytes * 16 // kv_bits


def part_rows(shape: Shape, *, rows: int) -> int:
    """Rows of a part; those that pad a block of rows are left out."""
    return min(rows, power_of_two(shape.rows))


def chunks(shape: Shape, chosen: Config, *, processors: int) -> int:
    """Chunks that the batch is cut into, so that all programs together fill the GPU.

    Once, unless that leaves a tenth of it idle, as with 96 heads for 132 places; then a few times.
    """
    blocks, places = head_blocks(shape, chosen), processors * chosen.residents
    if places // blocks * blocks >= _FILLED * places:
        return places // blocks
    waves = max(range(1, 5), key=lambda wave: wave * places // blocks / wave)
    return max(1, waves * places // blocks)


def places(shape: Shape, chosen: Config, *, processors: int) -> int:
    """Parts that a workspace holds: two of each program, see the kernel."""
    return 2 * chunks(shape, chosen, processors=processors) * head_blocks(shape, chosen)


def head_blocks(shape: Shape, chosen: Config) -> int:
    """Blocks of query rows of a request."""
    return shape.kv_heads * row_blocks(shape, chosen)


def row_blocks(shape: Shape, chosen: Config) -> int:
    """Blocks of query rows that read one KV head."""
    return -(-shape.rows // chosen.rows)


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a handful for the interpreter, whose programs run in turn."""
    if device.type != "cuda":
        return _INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


_TILE_BYTES = 16 << 10
_SHARED = 224 << 10
"""Bytes of a Hopper's 227 KiB for tiles and queries; page ids and scales take the rest."""
_VALUES = 32
_LIGHT_ROW = 256
_LIGHT_TILE = 64
_FEW_ROWS = 16
_LIGHT_NUMBERS = 16 * 256
_PART_NUMBERS = 16 << 10
_PARTS = 32
_PART_ROWS = 4
_FILLED = 0.9
_INTERPRETED = 4
