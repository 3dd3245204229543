"""Identity of blocks: injective, the same everywhere, incremental, and refused when malformed."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from ctypes import c_int32
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvproof.reference.core.identity import (
    HASH_ALGORITHMS,
    BlockKeys,
    IdentityError,
    KeyChain,
    Namespace,
    Span,
    check_spans,
    encode,
    segments,
    token_bytes,
)

draws = settings(derandomize=True, database=None, deadline=None, max_examples=150)

SIZE = 2
SHA256 = HASH_ALGORITHMS["sha256"]

names = st.none() | st.sampled_from(["", "a", "b", "ab", "c", "bc", "None", "n", "\ud800", "\0"])
namespaces = st.builds(Namespace, names, names, names)
tokens = st.lists(st.integers(0, 1) | st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=8)


@st.composite
def requests(draw):
    """Everything that one block's key may depend on: namespace, tokens, spans, group, epoch."""
    ids = draw(tokens)
    spans, start = [], 0
    for _ in range(draw(st.integers(0, 2))):
        start += draw(st.integers(0, 2))
        length = draw(st.integers(1, 3))
        if start + length > len(ids):
            break
        kind = draw(st.sampled_from(["image", "audio"]))
        spans.append(Span(kind, start, length, draw(st.sampled_from(["7f", "a9"]))))
        start += length
    group, epoch = draw(st.integers(0, 1)), draw(st.integers(0, 1))
    return draw(namespaces), tuple(ids), tuple(spans), group, epoch


def keys(space, ids, spans=(), group=0, epoch=0, *, digest=SHA256, size=SIZE):
    chain = BlockKeys(KeyChain(digest, "kvproof", group, epoch), block_size=size, namespace=space)
    chain.extend(list(ids), spans)
    return chain.keys


def identity(request, block):
    """Spell out what block number `block` depends on, the naive way (H1)."""
    space, ids, spans, group, epoch = request
    end = (block + 1) * SIZE
    return space, ids[:end], tuple(span for span in spans if span.start < end), group, epoch


@draws
@given(requests(), requests())
def test_two_blocks_have_equal_keys_exactly_if_their_identity_is_equal(one, other):
    for i, mine in enumerate(keys(*one)):
        for j, theirs in enumerate(keys(*other)):
            assert (mine == theirs) == (identity(one, i) == identity(other, j))


@draws
@given(requests(), st.data())
def test_any_single_difference_changes_the_key(one, data):
    space, ids, spans, group, epoch = one
    at = data.draw(st.integers(0, SIZE - 1))
    others = {
        "token": (space, (*ids[:at], ids[at] ^ 1, *ids[at + 1 :]), spans, group, epoch),
        "group": (space, ids, spans, group + 1, epoch),
        "epoch": (space, ids, spans, group, epoch + 1),
    }
    for field in Namespace._fields:
        changed = space._replace(**{field: f"{getattr(space, field)}!"})
        others[field] = (changed, ids, spans, group, epoch)
    if spans and spans[0].start < SIZE:
        first = spans[0]
        for field, value in {"kind": "video", "length": 9, "content": "00"}.items():
            changed = (first._replace(**{field: value}), *spans[1:])
            others[f"span {field}"] = (space, ids, changed, group, epoch)
        others["no span"] = (space, ids, spans[1:], group, epoch)
    for what, other in others.items():
        assert keys(*one)[0] != keys(*other)[0], what


@pytest.mark.parametrize(
    "spaces",
    [
        (Namespace(adapter="x"), Namespace(salt="x"), Namespace(adapter_version="x")),
        (Namespace("ab", "c"), Namespace("a", "bc"), Namespace("abc"), Namespace("abc", "")),
        (Namespace(), Namespace(""), Namespace(salt=""), Namespace("None"), Namespace("", "", "")),
        (Namespace("a", "1"), Namespace("a", "2"), Namespace("a1")),
    ],
    ids=["adapter named like a salt", "field boundaries", "nothing or empty", "version"],
)
def test_namespaces_that_look_alike_have_keys_of_their_own(spaces):
    found = {keys(space, (1, 2))[0] for space in spaces}
    assert len(found) == len(spaces)


fields = names | st.integers() | st.binary(max_size=3) | st.text("snib\0\1", max_size=4)


@draws
@given(st.lists(fields, max_size=4))
def test_a_list_is_encoded_as_its_fields_one_after_the_other(listed):
    assert encode(*listed) == b"".join(map(encode, listed))


def test_the_encoding_of_fields_is_that_of_keys_which_are_stored():
    """Disks and other processes have keys of it: a change makes all of them misses."""
    assert encode(None, -7, b"ab", "é") == (
        b"n" + bytes(8) + b"i\2" + bytes(7) + b"-7" + b"b\2" + bytes(7) + b"ab"
        b"s\2" + bytes(7) + b"\xc3\xa9"
    )


@draws
@given(fields, fields)
@example("a", "asb")
@example("a", "a\0")
@example(1, "1")
@example(b"a", "a")
@example(None, "")
@example(None, b"")
def test_no_encoded_field_begins_like_another_so_that_lists_are_told_apart(one, other):
    same = (type(one), one) == (type(other), other)
    assert encode(other).startswith(encode(one)) == same


@draws
@given(requests(), st.lists(st.integers(0, 8), max_size=6))
def test_keys_extended_and_cut_in_any_order_equal_keys_from_scratch(request_, lengths):
    space, ids, spans, group, epoch = request_
    chain = BlockKeys(KeyChain(SHA256, "kvproof", group, epoch), block_size=SIZE, namespace=space)
    for length in lengths:
        chain.truncate(length)
        assert len(chain.keys) <= length // SIZE
        chain.extend(list(ids), spans)
        assert chain.keys == keys(*request_)


@draws
@given(st.lists(st.tuples(st.integers(0, 8), st.lists(st.integers(0, 1), max_size=5)), max_size=6))
@example([(0, [0, 1, 0]), (1, [0, 0])])
def test_history_that_is_cut_and_rewritten_has_the_keys_of_the_new_history(edits):
    chain, history = BlockKeys(KeyChain(SHA256, "kvproof", 0, 0), block_size=SIZE), []
    for kept, appended in edits:
        history = history[:kept] + appended
        chain.truncate(kept)
        chain.extend(history)
        assert chain.keys == keys(Namespace(), history)


IN_A_PROCESS = """
import warnings
from kvproof.reference.core.identity import BlockKeys, KeyChain, Namespace, Span, hash_algorithm
warnings.simplefilter("ignore")
chain = BlockKeys(
    KeyChain(hash_algorithm({name!r}), "kvproof", 0, 0),
    block_size=2,
    namespace=Namespace("x", "1", "s"),
)
chain.extend([1, -2, 3, 2**31 - 1, 5], [Span("image", 1, 2, "7f3c")])
print([key.hex() for key in chain.keys])
"""


def in_a_process(source: str, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return done.stdout


def test_keys_of_cryptographic_algorithms_are_the_same_in_every_process():
    cryptographic = sorted(set(HASH_ALGORITHMS) - {"builtin"})
    source = "".join(IN_A_PROCESS.format(name=name) for name in cryptographic)
    space, span = Namespace("x", "1", "s"), Span("image", 1, 2, "7f3c")
    here = [
        keys(space, [1, -2, 3, 2**31 - 1, 5], [span], digest=HASH_ALGORITHMS[name])
        for name in cryptographic
    ]
    expected = "".join(f"{[key.hex() for key in chain]}\n" for chain in here)
    assert in_a_process(source, "1") == in_a_process(source, "2") == expected
    assert all(len(key) * 8 >= 256 for chain in here for key in chain)
    assert len({chain[0] for chain in here}) == len(cryptographic)


def test_builtin_hash_differs_between_processes_and_says_so_once():
    source = """
import warnings
from kvproof.reference.core.identity import hash_algorithm
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in ("builtin", "sha256", "builtin"):
        digest = hash_algorithm(name)
print(len(caught), "'sha256'" in str(caught[0].message), digest(b"x").hex())
"""
    one, other = in_a_process(source, "1").split(), in_a_process(source, "2").split()
    assert one[:2] == other[:2] == ["1", "True"]
    assert one[2] != other[2]


INT32 = [0, 1, -1, 127, 50_000, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    "form",
    [
        bytes(array("i", INT32)),
        bytearray(array("i", INT32)),
        array("i", INT32),
        (c_int32 * len(INT32))(*INT32),
        memoryview(np.array(INT32, np.int32)),
        memoryview(np.array(INT32, np.int32)).cast("B"),
        memoryview(np.repeat(np.array(INT32, np.int32), 2)[::2]),
        INT32,
        tuple(INT32),
        [np.int64(token) for token in INT32],
    ],
    ids=[
        "bytes",
        "bytearray",
        "array",
        "ctypes",
        "numpy",
        "raw",
        "strided",
        "list",
        "tuple",
        "scalars",
    ],
)
def test_all_forms_of_equal_tokens_are_equal_bytes(form):
    assert token_bytes(form) == array("i", INT32).tobytes()


@pytest.mark.parametrize(
    "form",
    [
        [1.0],
        ["1"],
        [None],
        [2**31],
        [-(2**31) - 1],
        b"12345",
        bytearray(3),
        "four",
        None,
        iter([1]),
        array("f", [1.0]),
        array("q", [1]),
        *(
            memoryview(np.ones(4, kind))
            for kind in ("int64", "float32", ">f4", "float16", "int16", "int8", "bool", ">i4", "S4")
        ),
    ],
    ids=lambda form: getattr(form, "format", None) or f"{form!r:.20}",
)
def test_what_is_not_int32_is_refused_with_what_to_give_instead(form):
    with pytest.raises(IdentityError, match=r"int32.*for example"):
        token_bytes(form)


def test_token_out_of_range_is_named():
    with pytest.raises(IdentityError, match="token 2 is 3000000000"):
        token_bytes([-(2**31), 2**31 - 1, 3_000_000_000, 2])


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span("image", 4, 2, "h"), Span("image", 0, 1, "h")], "span 1 .image at 0. begins before"),
        ([Span("image", 0, 3, "h"), Span("audio", 2, 1, "h")], "span 1 .audio at 2. begins before"),
        ([Span("video", 6, 3, "h")], "span 0 .video at 6. ends at 9, past the prompt of 8"),
        ([Span("image", 0, 1, "h"), Span("image", 1, 1, "")], "span 1 .* has no content hash"),
        ([Span("image", 0, 0, "h")], "span 0 .* has length 0"),
        ([Span("image", 0, -1, "h")], "span 0 .* has length -1"),
        ([Span("image", -1, 2, "h")], "span 0 .* begins before token 0"),
    ],
)
def test_malformed_span_is_refused_by_name(spans, message):
    with pytest.raises(IdentityError, match=message):
        check_spans(spans, 8)


def test_spans_that_touch_and_fill_the_prompt_are_accepted():
    check_spans([Span("image", 0, 4, "h"), Span("image", 4, 4, "h")], 8)
    check_spans([], 0)


@draws
@given(requests(), st.integers(1, 4))
def test_segments_cover_the_request_and_each_begins_with_its_own_spans(request_, size):
    _, _, spans, _, _ = request_
    cuts = segments(spans, size)
    assert cuts[0].start == 0
    assert cuts[-1].stop == sys.maxsize
    assert all(one.stop == other.start for one, other in pairwise(cuts))
    assert [span for cut in cuts for span in cut.marks] == list(spans)
    for cut in cuts:
        first = range(cut.start // 4, cut.start // 4 + size)
        assert cut.start % (4 * size) == 0
        assert all(span.start in first for span in cut.marks)
    assert all(cut.marks for cut in cuts[1:]), "a segment without spans costs a node"


def test_every_registered_algorithm_is_a_function_of_its_input_only():
    for name, digest in HASH_ALGORITHMS.items():
        assert digest(b"ab") == digest(b"ab"), name
        different = [digest(data) for data in (b"", b"a", b"b", b"ab", b"ba")]
        assert all(one != other for one, other in combinations(different, 2)), name


def test_keys_of_prompts_shorter_than_a_block_are_none():
    short = keys(Namespace(), (1,))
    assert short == []
    assert len(keys(Namespace(), (1, 2, 3))) == 1
