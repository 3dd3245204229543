"""Properties of the suite `transfer`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

LAYOUTS = (
    "nhd", "hnd", "kv-nhd", "kv-hnd", "page-kv-nhd", "page-kv-hnd", "latent", "indexer", "state",
)  # fmt: skip
IN_LAYOUT = {name: f"pages are {name}" for name in LAYOUTS}
UNEQUAL = "layers of unequal geometry"
PADDED = "pages with gaps"
IN_TURN = "pages of several layers in turn"
ODD = "heads of an odd number of bytes"
RATIO = "a block of several pages"
SMALLER = "fewer chunks than slots"
TURNS = "more chunks than slots"
LARGE = "pages that the copy engine moves"
INSIDE = "a skip ends inside a block"
NULL = "a null block in a chunk"
WINDOW = "a window keeps a part of a chunk"
STATE_LEFT = "a state inside of a longer hit"
PAIR = "keys and values apart"
EXCLUDED = "a layer reads the pages of another"
AMBIGUOUS = "a tensor with several readings"
SETTLED = "a hint decides between readings"
TURNED = "strides in another order than the dimensions"
SEVERAL = "an object of several groups"
ONE = "an object of one group"
CROSSED = "a copy passes a border"
AT_ONCE = "pages are overwritten right after a store"
REUSED = "an object is overwritten after its event"
SIDE = "caches of one table with unequal blocks"
VERSIONS = "two versions of a format"
AS_LONG = "two formats with equally long rows"
NO_FORMAT = "rows without a format"
REFUSED = {
    kind: f"refused: {kind}"
    for kind in (
        "id", "negative", "count", "groups", "object", "twice", "skip", "ranges",
        "memory with steps", "memory in two dimensions", "memory of numbers", "memory too long",
    )
}  # fmt: skip

PROPERTIES = table(
    vars(),
    """
every_tensor_is_in_one_group | G1 | UNEQUAL PADDED PAIR EXCLUDED
    groups hold every tensor once, in order of first appearance, and only equal geometries
    why: some layers are left out of a stored prefix, and restored prompts answer nonsense
ambiguous_layouts_are_refused | G1 | AMBIGUOUS SETTLED TURNED
    an ambiguous tensor is refused with its readings, and a hint selects one
    why: keys are stored in transposed order without a warning, and every restored hit is wrong
side_caches_have_the_blocks_of_their_table | K5 G1 | SIDE
    caches of one table have equally many blocks, or are refused with both numbers
    why: a smaller side cache is read past its end, which crashes the GPU process
a_chunk_is_described_to_the_byte | G2 | UNEQUAL WINDOW
    groups lie aligned, one after the other, and a layout survives JSON unchanged
    why: another process unpacks a chunk at shifted offsets and restores noise
slots_have_views_of_every_group | G3 | SEVERAL
    typed views of slots are the bytes of their group, and wrong indices are refused
    why: a connector writes one layer's bytes over another layer's
stored_bytes_equal_the_pages | G4 G5 K3
    a chunk holds the bytes of its blocks, token by token, whatever layout the pages have
    why: the store keeps wrong bytes, and every engine that shares it answers wrongly
    - IN_LAYOUT UNEQUAL PADDED IN_TURN ODD RATIO SMALLER TURNS LARGE
retrieved_bytes_reach_their_blocks | G4 G5 K3
    blocks get the bytes of their chunk back, token by token, in their own layout
    why: a prefix fetched from the store lands in the wrong pages, and the answer ignores the
    prompt
    - IN_LAYOUT UNEQUAL PADDED IN_TURN ODD RATIO SMALLER TURNS LARGE
skipped_tokens_stay_untouched | G6 | INSIDE
    the tokens before skip_first_tokens keep their bytes, also inside of a block
    why: loading the rest of a prefix overwrites the part that was already right
only_valid_blocks_move | G10 | NULL WINDOW STATE_LEFT
    null blocks and blocks that a window has left are neither read nor written
    why: transfers copy stale pages of windowed layers, wasting bandwidth and spoiling later
    hits
nothing_else_is_written | G4 G10 | PADDED IN_TURN UNEQUAL
    bytes of other blocks and layers, between pages and between groups keep their value
    why: loading one user's prefix corrupts the pages of other running requests
transferred_blocks_are_those_visible | G10 | WINDOW STATE_LEFT
    windows, chunks and states need exactly the blocks that the next token sees
    why: a moved request lacks pages that it still needs, or moves gigabytes that it does not
wrong_arguments_move_nothing | G4 | REFUSED
    ids, ranges and objects that do not fit are refused before anything is enqueued
    why: a wrong index in a connector copies half the data before it fails, or none of it fails
pages_of_another_format_are_refused | G2 H6 Q5 | VERSIONS AS_LONG NO_FORMAT
    an object of one format of bytes has another key than under every other, and is refused
    why: an engine with an 8-bit cache reads 16-bit pages and answers noise
objects_have_a_view_per_group | G9 | SEVERAL ONE
    views of groups are typed, and the only tensor of several groups is an error naming them
    why: a connector written for one group silently drops all other groups of a hybrid model
copies_stay_inside_segments | G9 | CROSSED
    pieces of a copy cover it once, in order, and none crosses a border of pinned segments
    why: a copy crosses the end of pinned memory, and the process dies at random
every_byte_read_was_written | G4 | AT_ONCE REUSED TURNS LARGE NULL | by metamorphic pair
    however late copies run, reads and writes keep the caller's order
    why: under load a slow copy delivers bytes that were not there yet, and some answers are
    garbage
""",
)
