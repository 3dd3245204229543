"""Rows of a run: messages as OpenCompass renders them, references, and the rule of their grade."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.long_context.grade import RULES, Reference, best, grade, score
from kvproof.eval.run.config import Protocol
from kvproof.eval.run.protocol import Asked, Exchange, Material, Request
from kvproof.harness.errors import UsageError
from kvproof.harness.http.completion_client import CompletionClient
from kvproof.harness.opening import opened

Messages = tuple[dict[str, str], ...]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One question of a data set of OpenCompass."""

    data_set: str
    messages: Messages
    reference: Reference
    evaluator: str
    """Class of the evaluator, as `package.module.Name`."""
    max_tokens: int = 0
    """Tokens of an answer; 0: those of the protocol."""

    @property
    def rule(self) -> Any:
        """Rule of its grade."""
        return RULES[self.evaluator.rpartition(".")[2]]


class RowCard(Asked, frozen=True, kw_only=True):
    """Facts of a row whose messages stay on disk; its domain is its data set."""

    evaluator: str
    offset: int
    size: int


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Row).decode


class RowFile:
    """A file of rows, data set after data set: cards in memory. Close it after use."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if there is none, or no row in it."""
        self.path = path
        try:
            self._file = opened(path)
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {error.strerror}", _AGAIN) from error
        try:
            self.cards, self.sha256 = self._scan()
        except msgspec.MsgspecError as error:
            self.close()
            raise UsageError(f"{str(path)!r} holds no rows: {error}", _AGAIN) from error
        except UsageError:
            self.close()
            raise

    def _scan(self) -> tuple[tuple[RowCard, ...], str]:
        digest, offset, counts = hashlib.sha256(), 0, Counter[str]()
        cards = []
        for line in self._file:
            digest.update(line)
            row = _decode(line)
            if not row.reference:
                raise UsageError(
                    f"{row.data_set} has a row without a reference: its text does not fit",
                    "give a larger --length, other --tasks, or --tokenizer words",
                )
            cards.append(
                RowCard(
                    id=f"{row.data_set} {counts[row.data_set]}",
                    domain=row.data_set,
                    answer=best(row.rule, row.reference),
                    evaluator=row.evaluator,
                    offset=offset,
                    size=len(line),
                )
            )
            counts[row.data_set] += 1
            offset += len(line)
        return tuple(cards), digest.hexdigest()

    def row(self, number: int) -> Row:
        """Read one row again; thread-safe."""
        card = self.cards[number]
        return _decode(os.pread(self._file.fileno(), card.size, card.offset))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_AGAIN = "choose another --output: the rows are built anew there"


class DataSetRows(msgspec.Struct, frozen=True):
    """Consecutive rows of one data set."""

    name: str
    evaluator: str
    first: int
    count: int


@dataclass(frozen=True)
class Rows(Material):
    """Rows as the material of a run."""

    file: RowFile

    @property
    def count(self) -> int:
        """Number of samples of a pass."""
        return len(self.file.cards)

    def sample(self, request: Request) -> RowCard:
        """Sample of a request."""
        return self.file.cards[request.number]

    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Send the messages of a row, for as many tokens as its data set and the protocol allow."""
        row = self.file.row(request.number)
        most = min(row.max_tokens or protocol.max_tokens, protocol.max_tokens)
        return Exchange(encode(row.messages), client.chat(row.messages, max_tokens=most))

    def extract(self, request: Request, text: str) -> str | None:
        """Grade of a text."""
        row = self.file.row(request.number)
        return grade(row.rule, text, row.reference)

    def score(self, number: int, text: str) -> float:
        """Score of a text, 0 to 1."""
        row = self.file.row(number)
        return score(row.rule, text, row.reference)

    def sets(self) -> Iterator[DataSetRows]:
        """Data sets in their order."""
        first = 0
        for name, count in Counter(card.domain for card in self.file.cards).items():
            yield DataSetRows(name, self.file.cards[first].evaluator, first, count)
            first += count
