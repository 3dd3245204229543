"""Content hashes: equal values have one, different values never do, addresses play no part."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from array import array
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from itertools import combinations
from types import MappingProxyType

import numpy as np
import pytest

from kvproof.reference.core.identity import IdentityError
from kvproof.reference.core.media_hash import content_hash


class Fit(Enum):
    CROP = 1
    PAD = 2


class Level(IntEnum):
    ONE = 1


@dataclass
class Grid:
    rows: int
    columns: int


@dataclass
class Turned:
    rows: int
    columns: int


Size = namedtuple("Size", "width height")
Place = namedtuple("Place", "width height")

PIXELS = np.arange(24, dtype=np.int32).reshape(2, 3, 4)


def image_bytes(kind: str = "int32") -> np.ndarray:
    return PIXELS.astype(kind)


DIFFERENT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**70,
    1.0,
    0.0,
    -0.0,
    float("nan"),
    1j,
    "",
    "1",
    "a",
    "\ud800",
    b"",
    b"1",
    b"a",
    b"\0",
    [],
    (),
    set(),
    {},
    [[]],
    [[], []],
    [()],
    ([],),
    [None],
    [0],
    [1],
    [True],
    (1,),
    (1, 2),
    (12,),
    ("a", "bc"),
    ("ab", "c"),
    ("abc",),
    [["a"], "bc"],
    ["a", ["bc"]],
    [1, [2, [3]]],
    [[[1], 2], 3],
    {1},
    {1, 2},
    {"1"},
    {(1, 2)},
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {1: "a"},
    {"a": {"b": 1}},
    {"a": 1, "b": 2},
    {"a": 2, "b": 1},
    [("a", 1), ("b", 2)],
    Fit.CROP,
    Fit.PAD,
    Level.ONE,
    Grid(1, 2),
    Grid(2, 1),
    Turned(1, 2),
    Size(1, 2),
    Place(1, 2),
    ("image", "L", (1, 1), None, b"\0"),
    ("masked", np.array([True]), np.array([1])),
    PIXELS,
    PIXELS.ravel(),
    PIXELS.reshape(3, 2, 4),
    PIXELS + 1,
    PIXELS[:, ::-1],
    PIXELS[:0],
    PIXELS[:, :0],
    PIXELS.tolist(),
    PIXELS.tobytes(),
    image_bytes("int64"),
    image_bytes("uint32"),
    image_bytes("float32"),
    image_bytes("complex64"),
    image_bytes("M8[s]"),
    image_bytes("M8[ms]"),
    np.array(1),
    np.array([1]),
    np.array(1.0),
    np.int32(1),
    np.float16(1),
    np.bool_(1),
    np.array([]),
    np.array([], "f4"),
    np.empty((0, 3)),
    np.empty((3, 0)),
    np.zeros(3, "i1"),
    np.zeros(3, "u1"),
    np.zeros(3, bool),
    np.array(["a", "b"]),
    np.array(["ab"]),
    np.array([b"a"]),
    np.array([None, 1], object),
    np.array([[None], [1]], object),
    np.array(["a"], np.dtypes.StringDType()),
    np.array([""], np.dtypes.StringDType()),
    np.array([(1, 2)], [("x", "i4"), ("y", "i4")]),
    np.array([(1, 2)], [("y", "i4"), ("x", "i4")]),
    np.array([(1, 2)], [("x", "i4"), ("y", "i8")]),
    np.zeros(1, [("x", "i4", 2)]),
    np.zeros(1, "V2"),
    np.zeros(1, "V4"),
    np.ma.array([1, 2], mask=[False, True]),
    np.ma.array([1, 2], mask=[True, False]),
    np.array([1, 2]),
]  # fmt: skip - a table
"""No two of these are one value."""


def test_different_values_never_share_a_hash() -> None:
    hashes = [content_hash(value) for value in DIFFERENT]
    twins = [
        (DIFFERENT[i], DIFFERENT[j])
        for i, j in combinations(range(len(hashes)), 2)
        if hashes[i] == hashes[j]
    ]
    assert not twins
    assert len(DIFFERENT) > 100


def test_nesting_keeps_values_apart() -> None:
    values = DIFFERENT[1:]  # (None, None) is one value, wrapped either way
    nested = [content_hash(wrap(value)) for value in values for wrap in WRAPS]
    assert len(set(nested)) == len(values) * len(WRAPS)


WRAPS: list[Callable[[object], object]] = [
    lambda value: [value],
    lambda value: (value, None),
    lambda value: (None, value),
    lambda value: {"x": value},
    lambda value: Grid(1, value),  # type: ignore[arg-type]
]


def test_a_hash_is_256_bits() -> None:
    assert len(bytes.fromhex(content_hash(b"picture"))) == 32


def test_metadata_counts() -> None:
    hashes = {
        content_hash(b"1"),
        content_hash(b"1", metadata=b"1"),
        content_hash(None, metadata=b"1"),
        content_hash([b"1", None]),
        content_hash(b"1", metadata={"grid": (1, 2)}),
        content_hash(b"1", metadata={"grid": (2, 1)}),
    }
    assert len(hashes) == 6


big = PIXELS.astype(">i4")
strided = np.zeros((4, 3, 4), np.int32)
strided[::2] = PIXELS


EQUAL = {
    "a copy": (PIXELS, PIXELS.copy()),
    "other memory order": (PIXELS, np.asfortranarray(PIXELS)),
    "a view with steps": (PIXELS, strided[::2]),
    "a view turned twice": (PIXELS, PIXELS[::-1, ::-1][::-1, ::-1]),
    "other byte order": (PIXELS, big),
    "fields in other byte order": (PIXELS.view([("x", "i4")]), big.view([("x", ">i4")])),
    "text in other byte order": (np.array(["\xe4"], "<U1"), np.array(["\xe4"], ">U1")),
    "a number of numpy": (np.int32(7), np.array(7, "i4")),
    "a typed array": (np.array([1, 2], "i4"), array("i", [1, 2])),
    "a view of numbers": (np.array([1, 2], "i4"), memoryview(array("i", [1, 2]))),
    "mutable bytes": (b"abc", bytearray(b"abc")),
    "a part of bytes": (b"abc", memoryview(b"xabcx")[1:4]),
    "bytes with steps": (b"ace", memoryview(b"abcde")[::2]),
    "other order of keys": ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    "an ordered mapping": ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
    "a view of a mapping": ({"a": 1}, MappingProxyType({"a": 1})),
    "a frozen set": ({1, "a", (2, 3)}, frozenset({(2, 3), "a", 1})),
    "a dataclass": (Grid(1, 2), Grid(1, 2)),
    "objects in an array": (np.array([1, None], object), np.array([1, None], object)),
}


@pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_values_share_a_hash(one: object, other: object) -> None:
    assert content_hash(one) == content_hash(other)


def test_padding_between_fields_is_no_content() -> None:
    kind = np.dtype([("x", "u1"), ("y", "i4")], align=True)
    raw = np.zeros(kind.itemsize * 3, np.uint8)
    clean = raw.view(kind)
    dirty = np.full(kind.itemsize * 3, 255, np.uint8).view(kind)
    dirty["x"], dirty["y"] = clean["x"], clean["y"]
    assert clean.tobytes() != dirty.tobytes()
    assert content_hash(clean) == content_hash(dirty)


class Opaque:
    pass


class Named(list):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        object(),
        [1, {"x": Opaque()}],
        np.array([Opaque()]),
        Opaque,
        len,
        Named([1]),
        iter([1]),
        (n for n in (1, 2)),
    ],
)
def test_what_has_no_value_is_refused_by_type(value: object) -> None:
    with pytest.raises(IdentityError, match=r"cannot be read by value; give its bytes"):
        content_hash(value)


def test_the_error_names_the_type() -> None:
    with pytest.raises(IdentityError, match=r"test_reference_media_hash\.Opaque"):
        content_hash({"pixels": Opaque()})


def test_wide_floats_are_refused() -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("this machine's long double has no padding")
    with pytest.raises(IdentityError, match="padding"):
        content_hash(np.zeros(2, np.longdouble))


def test_a_value_that_holds_itself_is_refused() -> None:
    knot: list[object] = []
    knot.append(knot)
    with pytest.raises(IdentityError, match="holds itself"):
        content_hash(knot)


PROGRAM = """
from kvproof.reference.core.media_hash import content_hash
import numpy as np
print(content_hash({"b": {1, "x", 2.5, (3,)}, "a": np.arange(6.0).reshape(2, 3)}))
"""


def test_hashes_are_equal_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = content_hash({"a": np.arange(6.0).reshape(2, 3), "b": {(3,), 2.5, "x", 1}})
    assert found == {f"{here}\n"}


def test_the_encoding_stays_what_it_is() -> None:
    """Keys that other hosts stored depend on it; a change needs a new version in its preamble."""
    size = (1).to_bytes(8, "little")
    numbers = b"a" + size + b"\3" + bytes(7) + b"s\5" + bytes(7) + b"int16" + b"b\6" + bytes(7)
    data = b"l\3" + bytes(7) + b"i" + size + b"1" + b"s" + size + b"a" + numbers
    values = b"\0\0\1\0\2\0"
    spelled = b"kvproof media 1\0" + data + values + b"n" + bytes(8)
    known = hashlib.sha256(spelled).hexdigest()
    assert content_hash([1, "a", np.arange(3, dtype="i2")]) == known


# --- other libraries, where they are installed ---


def test_small_floats_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = [
        ml_dtypes.bfloat16,
        np.float16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.int4,
    ]
    arrays = [np.zeros(4, kind) for kind in kinds] + [np.zeros(4, "V2")]
    assert len({content_hash(each) for each in arrays}) == len(arrays)
    numbers = np.arange(8).astype(ml_dtypes.bfloat16)
    assert content_hash(numbers[::2]) == content_hash(numbers[::2].copy())
    assert content_hash(numbers[0]) == content_hash(numbers[:1].reshape(()))


def test_tensors_are_the_arrays_of_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    pixels = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    assert content_hash(pixels) == content_hash(PIXELS)
    assert content_hash(pixels.transpose(0, 2)) == content_hash(PIXELS.transpose(2, 1, 0))
    half = torch.arange(8).to(torch.bfloat16)
    assert content_hash(half[::2]) == content_hash(half[::2].clone())
    kinds = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.complex64]
    zeros = [torch.zeros(4).to(kind) for kind in kinds]
    shapes = [torch.tensor(0.0), torch.zeros(1), torch.zeros(0), torch.zeros(0, 3)]
    assert len({content_hash(each) for each in zeros + shapes}) == len(zeros + shapes)
    imaginary = torch.tensor([1 + 2j])
    assert content_hash(imaginary.conj()) == content_hash(torch.tensor([1 - 2j]))
    assert content_hash(torch.ones(2, requires_grad=True)) == content_hash(torch.ones(2))
    with pytest.raises(IdentityError, match="cannot be read by value"):
        content_hash(torch.zeros(2, device="meta"))
    with pytest.raises(IdentityError, match="sparse"):
        content_hash(torch.eye(2).to_sparse())


def test_images_are_their_pixels_and_how_they_look() -> None:
    images = pytest.importorskip("PIL.Image")
    gray = images.new("L", (4, 2), 7)
    turned = gray.copy()
    turned.getexif()[0x0112] = 6
    paletted, repainted = (images.new("P", (4, 2), 0) for _ in range(2))
    paletted.putpalette([1, 2, 3])
    repainted.putpalette([3, 2, 1])
    clear = paletted.copy()
    clear.info["transparency"] = 0
    different = [
        gray,
        turned,
        paletted,
        repainted,
        clear,
        images.new("L", (2, 4), 7),
        images.new("L", (4, 2), 8),
        images.new("RGB", (4, 2), 7),
    ]
    assert len({content_hash(each) for each in different}) == len(different)
    assert content_hash(gray) == content_hash(images.frombytes("L", (4, 2), b"\7" * 8))
