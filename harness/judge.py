"""The properties of single answers: what was read, how long the hit is, where tokens go.

Oracles: the shadow memory for content, brute force over the ledger for hit lengths, and plain
invariants for tables. Every method is called by `Session` with the answer just received.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvproof.harness.shadow import BadTableError, Slots
from kvproof.harness.target import Batch, Completed, Refused, Released, Request, Scheduled, Table
from kvproof.harness.violation import (
    BRUTE_FORCE,
    INVARIANT,
    SHADOW,
    Violation,
    cause,
    describe_request,
    describe_writer,
)

if TYPE_CHECKING:
    from kvproof.harness.session import Live, Session

NULL_BLOCK = 0


def malformed(request: Request) -> str:
    """Say what is wrong with a request's identity input (H8); empty if nothing is."""
    end = 0
    for index, span in enumerate(request.spans):
        if not span.content:
            return f"span {index} has no content hash"
        if span.length < 1 or span.start + span.length > len(request.tokens):
            return f"span {index} does not lie in the prompt"
        if span.start < end:
            return f"span {index} begins before the one before it ends"
        end = span.start + span.length
    return "" if request.tokens else "it has no tokens"


class Judge:
    """Judges answers for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._check = session.check
        self._size = session.config.block_size

    def read(
        self, live: Live, start: int, stop: int, assertion: str = "", *, table_of: str = ""
    ) -> None:
        """Every read returns what that very request would have computed (T1, H1, H3, H6).

        `table_of` is the script's variable whose table is read: the request's own by default.
        """
        session, name = self._session, live.request.id
        slots = self.slots(live, start, stop)
        session.checks["reads_return_own_content"] += 1
        wrong = session.shadow.mismatch(slots, live.prints[start:stop], start)
        if wrong is None:
            return
        raise Violation(
            cause(wrong, live.request, live.epoch),
            SHADOW,
            f"request {name} reads position {wrong.position} from slot {wrong.slot} (block "
            f"{wrong.block}), which holds something else",
            detail=(
                f"expected {describe_request(live.request, wrong.position + 1)}, epoch "
                f"{live.epoch}; found {describe_writer(wrong.writer, wrong.written_as)}"
            ),
            assertion=assertion or f"slot({table_of or name}, {wrong.position}) != {wrong.slot}",
            suspects=(wrong.block,),
        )

    def slots(self, live: Live, start: int, stop: int) -> Slots:
        """Return the slots of positions [start, stop); a table that has none is a failure."""
        session, name = self._session, live.request.id
        try:
            return session.shadow.slots(live.table, start, stop)
        except BadTableError as error:
            raise Violation(
                "table_covers_its_tokens",
                INVARIANT,
                f"the table of request {name} does not address its {stop} tokens",
                detail=str(error),
                assertion=f"len({name}.tables[0]) * {session.config.kernel_size} >= {stop}",
            ) from error

    def hit(self, live: Live, answer: Scheduled, expected: int) -> None:
        """The hit is sound, whole blocks, maximal, and leaves the last token to compute (T1)."""
        name, hit, count = live.request.id, answer.hit, len(live.request.tokens)
        self._check(
            "last_token_is_computed",
            INVARIANT,
            hit < count and 0 <= answer.start == hit < answer.stop <= count,
            lambda: (
                f"request {name} of {count} tokens hit {hit} and computes [{answer.start}, "
                f"{answer.stop}): at least its last token must be computed, and none behind it"
            ),
            assertion=f"{name}.hit < {count} "
            f"and 0 <= {name}.start == {name}.hit < {name}.stop <= {count}",
        )
        self._note_reads(live, hit)
        self.read(live, 0, hit, f"{name}.hit <= {expected}")
        if self._session.was_not_stored(live.prints, expected):
            self._check(
                "requests_that_may_not_store_leave_nothing",
                BRUTE_FORCE,
                hit <= expected,
                lambda: (
                    f"request {name} hit {hit} tokens; from {expected} on only a request "
                    "that may not store has computed them"
                ),
                assertion=f"{name}.hit <= {expected}",
            )
        self._check(
            "hits_come_from_the_cache",
            BRUTE_FORCE,
            hit <= expected,
            lambda: (
                f"request {name} hit {hit} tokens, but only {expected} are complete, stored "
                "and still cached"
            ),
            assertion=f"{name}.hit <= {expected}",
        )
        if not live.request.read:
            self._check(
                "requests_that_may_not_read_hit_nothing",
                INVARIANT,
                hit == 0,
                lambda: f"request {name} may not read and hit {hit} tokens",
                assertion=f"{name}.hit == 0",
            )
        if self._session.profile.maximal:
            self._check(
                "hits_are_maximal",
                BRUTE_FORCE,
                hit >= expected,
                lambda: (
                    f"request {name} hit {hit} tokens although {expected} tokens of its "
                    "prefix are cached: a lost hit"
                ),
                assertion=f"{name}.hit >= {expected}",
            )

    def _note_reads(self, live: Live, hit: int) -> None:
        """A hit is also a judgement on every way in which content may differ (H1, H2, H6)."""
        checks = self._session.checks
        checks["no_hit_across_epochs"] += 1
        checks["namespaces_are_separate"] += 1
        checks["nothing_is_read_before_it_is_written"] += bool(hit)
        checks["spans_are_separate"] += bool(live.request.spans)

    def grouped(self, name: str, answer: Scheduled | Completed) -> None:
        """An answer shows the table of the group that there is (K2)."""
        variable = "done" if isinstance(answer, Completed) else name
        self._check(
            "table_covers_its_tokens",
            INVARIANT,
            bool(answer.blocks and answer.tables),
            lambda: f"request {name} has no table: {answer}",
            assertion=f"{variable}.blocks and {variable}.tables",
        )

    def tables(self, live: Live, answer: Scheduled) -> None:
        """Block i holds tokens [i * size, (i + 1) * size); pages are the blocks' own (K2, T7)."""
        name, blocks, table = live.request.id, answer.blocks[0], answer.tables[0]
        needed = -(-answer.stop // self._size)
        self._check(
            "table_covers_its_tokens",
            INVARIANT,
            len(blocks) >= needed,
            lambda: (
                f"request {name} has {len(blocks)} blocks for {answer.stop} tokens of "
                f"{self._size} a block, it needs {needed}"
            ),
            assertion=f"len({name}.blocks[0]) >= {needed}",
        )
        ratio = self._size // self._session.config.kernel_size
        expanded = tuple(block * ratio + page for block in blocks for page in range(ratio))
        self._check(
            "kernel_tables_address_their_blocks",
            INVARIANT,
            table[: len(expanded)] == expanded,
            lambda: (
                f"blocks {blocks} of request {name} are pages {expanded}; its kernel table "
                f"says {table}"
            ),
            assertion=f"{name}.tables[0] == {expanded}",
        )

    def extension(self, live: Live, answer: Scheduled, before: Table) -> None:
        """An extension appends to the table and goes on where the request stopped (T7)."""
        name, count = live.request.id, len(live.request.tokens)
        self._check(
            "table_never_shifts",
            INVARIANT,
            answer.blocks[0][: len(before)] == before
            and live.computed == answer.start <= answer.stop <= count,
            lambda: (
                f"request {name} had blocks {before} and {live.computed} tokens; extended to "
                f"{count} it has {answer.blocks[0]} and computes [{answer.start}, {answer.stop})"
            ),
            assertion=f"{name}.blocks[0][:{len(before)}] == {before} "
            f"and {live.computed} == {name}.start <= {name}.stop <= {count}",
        )

    def batch(self, rows: list[Live], answer: Batch) -> None:
        """Rows of a padded batch are the requests' tables, padded with null pages (K3, B1)."""
        session = self._session
        ratio = self._size // session.config.kernel_size
        width = max(len(live.table) for live in rows)
        found = len(answer.tables[0]) if answer.tables else 0
        self._check(
            "batch_rows_are_the_tables",
            INVARIANT,
            found == len(rows),
            lambda: f"a batch of {len(rows)} requests has {found} rows",
            assertion=f"len(batch.tables[0]) == {len(rows)}",
        )
        for index, live in enumerate(rows):
            row, own, name = answer.tables[0][index], live.table, live.request.id
            padding = row[len(own) :]
            self._check(
                "batch_rows_are_the_tables",
                INVARIANT,
                row[: len(own)] == own and len(row) >= width,
                partial("row of request {} is {}, its table is {}".format, name, row, own),
                assertion=f"batch.tables[0][{index}][:{len(own)}] == {own}",
            )
            self._check(
                "padding_is_the_null_block",
                INVARIANT,
                all(NULL_BLOCK <= page < (NULL_BLOCK + 1) * ratio for page in padding),
                partial(
                    "padding behind the table of request {} is {}; pages of the null block are "
                    "0..{}".format,
                    name,
                    padding,
                    ratio - 1,
                ),
                assertion=f"all(0 <= page < {ratio} for page in "
                f"batch.tables[0][{index}][{len(own)}:])",
            )

    def admissible(self, request: Request) -> None:
        """Malformed identity input is refused before it touches state (H8)."""
        problem = malformed(request)
        self._check(
            "malformed_identity_is_refused",
            INVARIANT,
            not problem,
            lambda: f"request {request.id} was admitted although {problem}",
            assertion=f"isinstance({request.id}, Refused)",
        )
        whole, capacity = -(-len(request.tokens) // self._size), self._session.config.num_blocks - 1
        self._check(
            "what_can_never_fit_is_refused_at_arrival",
            INVARIANT,
            whole <= capacity,
            lambda: (
                f"request {request.id} needs {whole} blocks in the end, the pool has {capacity}"
            ),
            assertion=f"isinstance({request.id}, Refused)",
        )

    def refusal(self, request: Request, answer: Refused, tokens: int, held: Table) -> None:
        """A refusal is for a reason: malformed, too large for the pool, or no room now (B8)."""
        session, name = self._session, request.id
        whole, capacity = -(-tokens // self._size), session.config.num_blocks - 1
        if answer.reason == "invalid":
            self._check(
                "malformed_identity_is_refused",
                INVARIANT,
                bool(malformed(request)),
                lambda: f"request {name} was refused as malformed: {answer.detail!r}",
                assertion=f"isinstance({name}, Scheduled)",
            )
            return
        if whole > capacity:
            session.checks["what_can_never_fit_is_refused_at_arrival"] += 1
            return
        room = capacity - len(set(session.holders()) - set(held))
        self._check(
            "what_fits_is_admitted",
            INVARIANT,
            whole > room,
            lambda: (
                f"request {name} was refused ({answer.reason}: needs {answer.needed}, "
                f"available {answer.available}) although it needs at most {whole} blocks and only "
                f"{capacity - room} of {capacity} are held by others"
            ),
            assertion=f"isinstance({name}, Scheduled)",
        )

    def reset(self, answer: Released | Refused) -> None:
        """A reset is refused exactly where that is declared: while a block is held (H6)."""
        session = self._session
        must_refuse = session.profile.reset == "idle" and bool(session.holders())
        self._check(
            "reset_does_what_it_says",
            INVARIANT,
            isinstance(answer, Refused) == must_refuse,
            lambda: (
                f"reset answered {answer} while {len(session.holders())} blocks are held; the "
                f"profile declares reset {session.profile.reset!r}"
            ),
            assertion=f"isinstance(last, Refused) == {must_refuse}",
        )

    def lookup(self, request: Request, found: int) -> None:
        """A lookup finds what an admission would hit (T1)."""
        expected = self._session.expected_hit(request)
        self._check(
            "lookup_finds_the_longest_prefix",
            BRUTE_FORCE,
            found == expected or (found < expected and not self._session.profile.maximal),
            lambda: f"lookup of {request.id} found {found} tokens, {expected} are reusable",
            assertion=f"last == {expected}",
        )
