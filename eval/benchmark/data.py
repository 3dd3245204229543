"""Samples of LongBench v2: read one at a time, checked, and never all in memory."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, field

from kvproof.eval.benchmark.json_stream import BrokenStream, Piece, objects
from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened
from kvproof.harness.records.run_directory import store

Difficulty = Literal["easy", "hard"]
Length = Literal["short", "medium", "long"]
Letter = Literal["A", "B", "C", "D"]

LETTERS: tuple[Letter, ...] = ("A", "B", "C", "D")
DIFFICULTIES: tuple[Difficulty, ...] = ("easy", "hard")
LENGTHS: tuple[Length, ...] = ("short", "medium", "long")

DOMAINS = {
    "Single-Document QA": 175,
    "Multi-Document QA": 125,
    "Long In-context Learning": 81,
    "Long-dialogue History Understanding": 39,
    "Code Repository Understanding": 50,
    "Long Structured Data Understanding": 33,
}
"""Domain -> samples of the published set."""

OFFICIAL_SAMPLES = 503
OFFICIAL_SHA256 = "15d61c22d92c96900b3c4948b6aeea218d3214b676a65df48e7b8555604c7fe2"
"""Digest of data.json: 465,490,535 bytes, revision 2b48e494f2c7 of THUDM/LongBench-v2 (hub)."""

Kind = Literal["published", "synthetic", "custom"]
"""The published set, generated samples, or any other file."""

TITLES: dict[Kind, str] = {
    "published": "LongBench v2",
    "synthetic": "synthetic samples in the shape of LongBench v2",
    "custom": "custom data in the shape of LongBench v2",
}

Text = Annotated[str, Meta(min_length=1)]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One row, with the published names in the file."""

    id: Text = field(name="_id")
    domain: Text
    sub_domain: Text
    difficulty: Difficulty
    length: Length
    question: Text
    choice_a: Text = field(name="choice_A")
    choice_b: Text = field(name="choice_B")
    choice_c: Text = field(name="choice_C")
    choice_d: Text = field(name="choice_D")
    answer: Letter
    context: Text

    @property
    def choices(self) -> tuple[str, str, str, str]:
        """Choices in the order of the letters."""
        return self.choice_a, self.choice_b, self.choice_c, self.choice_d


class Card(NamedTuple):
    """Facts about a sample that stays on disk."""

    domain: str
    row: int
    """Number of the row in the file."""
    offset: int
    size: int
    """Bytes of the row in the file."""


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the data of a run, for its record."""

    name: str
    sha256: str
    samples: int
    kind: Kind = "custom"
    notes: tuple[str, ...] = ()
    """Notes for the reader of the figures."""
    heading: str = ""
    """Title of data that is not in the shape of LongBench v2."""

    @property
    def title(self) -> str:
        """Name of the benchmark, which only the published data has without a word before it."""
        return self.heading or TITLES[self.kind]


_decode = msgspec.json.Decoder(Sample).decode


class DataSet:
    """A checked file: cards in memory, documents on disk. Close it after use.

    Raises UsageError, with row and field, if the file cannot be read or a row is not as published.
    """

    def __init__(
        self, path: Path, *, sha256: str = "", own: str = "", skip_bad_rows: bool = False
    ) -> None:
        """`own`: name of a generated file; any other file is compared with the published set.

        `skip_bad_rows`: leave them out, with a note, where they would be refused.
        """
        self.path, self._own, self._skip = path, own, skip_bad_rows
        self.left_out: dict[int, str] = {}
        """Rows that are skipped, with the reason."""
        self.kept = ""
        """Note of the samples that are asked, if not all are."""
        self._file = _opened(path)
        try:
            self.marked = self._file.peek(3).startswith(codecs.BOM_UTF8)
            """The file begins with a byte order mark."""
            self.cards, self._digest = self._scan()
            _check_pin(path, self._digest, sha256)
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> DataFacts:
        """Facts for the record, with a note of every row that is left out."""
        found = _facts(self._own or self.path.name, self.cards, self._digest, own=bool(self._own))
        skipped = (f"row {row} is left out: {why}" for row, why in sorted(self.left_out.items()))
        kept = (self.kept,) if self.kept else ()
        return msgspec.structs.replace(found, notes=(*kept, *found.notes, *skipped))

    def keep(self, count: int) -> None:
        """Keep so many samples, spread evenly over the file; 0: all."""
        whole = len(self.cards)
        if 0 < count < whole:
            self.cards = tuple(self.cards[at * whole // count] for at in range(count))
            self.kept = f"{count} of {whole} samples, spread evenly over the file"

    def leave_out(self, rows: Mapping[int, str]) -> None:
        """Skip these rows too, so that they fit another file."""
        self.left_out = {**rows, **self.left_out}
        self.cards = tuple(card for card in self.cards if card.row not in rows)
        self._check_some(self.cards)

    def _scan(self) -> tuple[tuple[Card, ...], str]:
        digest, cards, rows = hashlib.sha256(), list[Card](), dict[str, int]()
        for piece in self._pieces(digest):
            try:
                cards.append(self._card(piece, rows))
            except UsageError as error:
                if not self._skip:
                    raise
                self.left_out[piece.number] = str(error).removeprefix(self._where(piece.number))
        self._check_some(cards)
        return tuple(cards), digest.hexdigest()

    def _card(self, piece: Piece, rows: dict[str, int]) -> Card:
        sample = self._sample(piece.number, piece.data)
        if (first := rows.setdefault(sample.id, piece.number)) != piece.number:
            raise self._wrong(piece.number, f"_id {sample.id!r} is that of row {first}")
        return Card(sample.domain, piece.number, piece.offset, len(piece.data))

    def _check_some(self, cards: Sequence[Card]) -> None:
        if not cards:
            why = next((f"; {each}" for each in self.left_out.values()), "")
            raise UsageError(f"{str(self.path)!r} has no samples{why}", _WHERE)

    def _pieces(self, digest: hashlib._Hash) -> Iterator[Piece]:
        def read(size: int) -> bytes:
            chunk = self._file.read(size)
            digest.update(chunk)
            return chunk

        try:
            yield from objects(read)
        except BrokenStream as error:
            where = f"byte {error.offset:,}: {error}"
            raise self._wrong(error.index, where) from error
        except OSError as error:
            raise UsageError(f"cannot read {str(self.path)!r}: {error.strerror}", _WHERE) from error

    def _sample(self, index: int, data: bytes) -> Sample:
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._wrong(index, str(error)) from error

    def _wrong(self, index: int, what: str) -> UsageError:
        return UsageError(f"{self._where(index)}{what}", _SCHEMA)

    def _where(self, index: int) -> str:
        return f"{str(self.path)!r}, row {index}: "

    def sample(self, index: int) -> Sample:
        """Read one sample again; thread-safe."""
        card = self.cards[index]
        return self._sample(card.row, os.pread(self._file.fileno(), card.size, card.offset))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> DataSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_WHERE = "give the data.json of LongBench v2, or leave --data out for synthetic samples"
_SCHEMA = (
    "a row has the strings _id, domain, sub_domain, question, context, choice_A to choice_D, an "
    "answer A to D, a difficulty easy or hard, a length short, medium or long; --skip-bad-rows "
    "leaves such rows out, with a note in the report"
)


def _opened(path: Path) -> BufferedReader:
    try:
        return opened(path)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}", _WHERE) from error


def _facts(name: str, cards: Sequence[Card], digest: str, *, own: bool) -> DataFacts:
    official = digest == OFFICIAL_SHA256
    kind: Kind = "published" if official else "synthetic" if own else "custom"
    notes = {"published": (), "synthetic": (_OWN,), "custom": tuple(_differences(cards))}
    found = TITLES[kind] if official else name
    return DataFacts(name=found, sha256=digest, samples=len(cards), kind=kind, notes=notes[kind])


_OWN = "synthetic samples, not LongBench v2: no figure is comparable with published ones"


def _differences(cards: Sequence[Card]) -> Iterator[str]:
    yield "not the published LongBench v2: its SHA-256 is another one"
    if len(cards) != OFFICIAL_SAMPLES:
        yield f"{len(cards)} samples, LongBench v2 has {OFFICIAL_SAMPLES}"
        return
    found = Counter(card.domain for card in cards)
    for name in dict.fromkeys([*DOMAINS, *found]):
        if found[name] != DOMAINS.get(name, 0):
            yield f"{found[name]} samples of {name!r}, LongBench v2 has {DOMAINS.get(name, 0)}"


def _check_pin(path: Path, digest: str, pinned: str) -> None:
    if pinned and digest != pinned.lower():
        raise UsageError(
            f"{str(path)!r} has SHA-256 {digest}, the configuration asks for {pinned}",
            "give the file that the configuration was written for, or change data_sha256 there",
        )


def write_data(path: Path, samples: Iterable[Sample]) -> Path:
    """Write samples as a JSON array, one row per line. Raises UsageError."""
    rows = b",\n".join(msgspec.json.encode(sample) for sample in samples)
    return store(path, b"[\n" + rows + b"\n]\n")
