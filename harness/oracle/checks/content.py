"""The properties of single answers: what was read, how long the hit is, where tokens go.

Oracles: the shadow memory for content, brute force over the ledger for hit lengths, and plain
invariants for tables. Every method is called by `Session` with the answer just received.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Batch, Completed, Scheduled, Table
from kvproof.harness.oracle.checks.sharing import is_equal
from kvproof.harness.oracle.request_state import NULL_BLOCK
from kvproof.harness.oracle.shadow_memory import BadTableError, Slots
from kvproof.harness.oracle.violation import (
    BRUTE_FORCE,
    INVARIANT,
    SHADOW,
    Violation,
    cause,
    describe_request,
    describe_writer,
)

if TYPE_CHECKING:
    from kvproof.harness.oracle.request_state import Live
    from kvproof.harness.oracle.session import Session


class Judge:
    """Judges answers for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._check = session.check
        self._layout = session.layout

    def read(
        self,
        live: Live,
        position: int,
        stop: int | None = None,
        assertion: str = "",
        *,
        table_of: str = "",
    ) -> None:
        """Every read returns what that very request would have computed (T1, H1, H3, H6, H7).

        Read is what computing `position` sees in each group, up to `stop` (default: `position`).
        `table_of` is the script's variable whose table is read: the request's own by default.
        """
        stop = position if stop is None else stop
        for group in self._layout.attention:
            first = self._layout.visible(group, position)
            self._read(live, group, first, stop, assertion, table_of or live.request.id)

    def _read(
        self, live: Live, group: int, start: int, stop: int, assertion: str, variable: str
    ) -> None:
        session, name = self._session, live.request.id
        slots = self.slots(live, group, start, stop)
        session.checks["reads_return_own_content"] += 1
        expected = live.prints[start:stop]
        if group:
            expected = expected ^ self._layout.salts[group]
        wrong = session.shadow.mismatch(slots, expected, start)
        if wrong is None:
            return
        where = "" if self._layout.single else f" of group {group}"
        raise Violation(
            cause(wrong, live.request, live.epoch, group),
            SHADOW,
            f"request {name} reads position {wrong.position}{where} from slot {wrong.slot} (block "
            f"{wrong.block}), which holds something else",
            detail=(
                f"expected {describe_request(live.request, wrong.position + 1)}, epoch "
                f"{live.epoch}; found {describe_writer(wrong.writer, wrong.written_as)}"
            ),
            assertion=(assertion or f"slot({variable}, {wrong.position}) != {wrong.slot}")
            if self._layout.single
            else "",
            suspects=(wrong.block,),
        )

    def slots(self, live: Live, group: int, start: int, stop: int) -> Slots:
        """Return the slots of positions [start, stop); a table that has none is a failure."""
        session, name = self._session, live.request.id
        paging = self._layout.pagings[group]
        try:
            return session.shadow.slots(live.tables[group], start, stop, paging)
        except BadTableError as error:
            raise Violation(
                "table_covers_its_tokens",
                INVARIANT,
                f"the table of request {name} does not address its {stop} tokens",
                detail=str(error),
                assertion=f"len({name}.tables[0]) * {paging.page_size} >= {stop}"
                if self._layout.single
                else "",
            ) from error

    def hit(self, live: Live, answer: Scheduled, expected: int, known: int) -> None:
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
        self._session.hits.valid(live, hit)
        there = hit // self._layout.unit * self._layout.unit if self._session.tails else hit
        self.read(live, hit, there, assertion=f"{name}.hit <= {expected}")  # the rest is copied
        if self._session.running.was_lost("not stored", live.request, expected):
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
        if self._session.running.was_lost("rejected", live.request, expected):
            self._check(
                "rejected_drafts_are_never_indexed",
                BRUTE_FORCE,
                hit <= expected,
                lambda: (
                    f"request {name} hit {hit} tokens; from {expected} on only a step has computed "
                    "them whose drafts were rejected"
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
                hit >= known or self._session.admissions.hit_is_in_the_way(live, hit, known),
                lambda: (
                    f"request {name} hit {hit} tokens although {known} tokens of its "
                    "prefix are cached: a lost hit"
                ),
                assertion=f"{name}.hit >= {known}",
            )

    def _note_reads(self, live: Live, hit: int) -> None:
        """A hit is also a judgement on every way in which content may differ (H1, H2, H6)."""
        checks = self._session.checks
        checks["no_hit_across_epochs"] += 1
        checks["namespaces_are_separate"] += 1
        checks["nothing_is_read_before_it_is_written"] += bool(hit)
        checks["spans_are_separate"] += bool(live.request.spans)

    def grouped(self, name: str, answer: Scheduled | Completed) -> None:
        """An answer shows the tables of all groups that there are (K2, X1)."""
        variable = "done" if isinstance(answer, Completed) else name
        count = len(self._layout.groups)
        self._check(
            "table_covers_its_tokens",
            INVARIANT,
            len(answer.blocks) == len(answer.tables) == count,
            lambda: f"request {name} has no table in each of {count} groups: {answer}",
            assertion=f"{variable}.blocks and {variable}.tables",
        )

    def tables(self, live: Live, answer: Scheduled) -> None:
        """Block i holds tokens [i * size, (i + 1) * size); pages are the blocks' own (K2, T7)."""
        for group in self._layout.attention:
            self._covered(live, group, answer.stop)
            self._expanded(live, group)
        self.returned(live)

    def _covered(self, live: Live, group: int, stop: int) -> None:
        name, blocks = live.request.id, live.groups[group]
        needed = self._layout.blocks_for(group, stop)
        self._check(
            "table_covers_its_tokens",
            INVARIANT,
            len(blocks) >= needed,
            lambda: (
                f"request {name} has {len(blocks)} blocks for {stop} tokens of "
                f"{self._layout.groups[group].block_size} a block, it needs {needed}"
            ),
            assertion=f"len({name}.blocks[0]) >= {needed}",
        )

    def _expanded(self, live: Live, group: int) -> None:
        name, blocks, table = live.request.id, live.groups[group], live.tables[group]
        ratio = self._layout.pagings[group].ratio
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

    def returned(self, live: Live) -> None:
        """Blocks behind a window or chunk are given back, and not while a step sees them (X4)."""
        layout, name, position = self._layout, live.request.id, live.earliest
        for group in layout.attention:
            if layout.groups[group].kind == "full":
                continue
            table, first = live.groups[group], layout.first_block(group, position)
            end = layout.blocks_for(group, max(live.computed, position))
            self._check(
                "blocks_behind_a_window_outlive_running_steps",
                INVARIANT,
                NULL_BLOCK not in table[first:end],
                partial(
                    "request {} computes token {} and sees {} of group {} from entry {} on: a "
                    "block was given back too early".format,
                    name, position, table[first:end], group, first,
                ),
            )  # fmt: skip
            if self._session.profile.behind_windows == "freed":
                continue
            behind = table[: layout.released(group, position)]
            self._check(
                "blocks_behind_a_window_are_returned",
                INVARIANT,
                not any(behind),
                partial(
                    "request {} goes on from token {} and holds {} of group {}, in which nothing "
                    "is visible any more".format, name, position, behind, group,
                ),
            )  # fmt: skip

    def extension(self, live: Live, answer: Scheduled, before: tuple[Table, ...]) -> None:
        """An extension appends to the table and goes on where the request stopped (T7)."""
        name, count = live.request.id, len(live.request.tokens)
        freed = self._session.profile.behind_windows == "freed"
        kept = all(
            new == old
            or (freed and new == NULL_BLOCK and group not in self._layout.full)
            or is_equal(self._session, live, group, index, new)
            for group in self._layout.attention
            for index, (old, new) in enumerate(
                zip_longest(before[group], answer.blocks[group][: len(before[group])])
            )
        )
        self._check(
            "table_never_shifts",
            INVARIANT,
            kept and live.computed == answer.start <= answer.stop <= count,
            lambda: (
                f"request {name} had blocks {self._shown(before)} and {live.computed} tokens; "
                f"extended to {count} it has {self._shown(answer.blocks)} and computes "
                f"[{answer.start}, {answer.stop})"
            ),
            assertion=f"{name}.blocks[0][:{len(before[0])}] == {before[0]} "
            f"and {live.computed} == {name}.start <= {name}.stop <= {count}",
        )

    def _shown(self, groups: tuple[Table, ...]) -> Table | tuple[Table, ...]:
        return groups[0] if self._layout.single else groups

    def batch(self, rows: list[Live], answer: Batch) -> None:
        """Rows of a padded batch are the requests' tables, padded with null pages (K3, B1)."""
        for group in self._layout.attention:
            found = answer.tables[group] if group < len(answer.tables) else ()
            self._check(
                "batch_rows_are_the_tables",
                INVARIANT,
                len(found) == len(rows),
                partial("a batch of {} requests has {} rows".format, len(rows), len(found)),
                assertion=f"len(batch.tables[0]) == {len(rows)}",
            )
            widths = [len(row) for row in found]
            self._check(
                "batch_rows_are_the_tables",
                INVARIANT,
                len({*widths}) <= 1,
                partial("rows of group {} have the widths {}, not one".format, group, widths),
                assertion=f"len({{len(row) for row in batch.tables[{group}]}}) <= 1",
            )
            self._batch(rows, found, group)

    def _batch(self, rows: list[Live], found: tuple[Table, ...], group: int) -> None:
        ratio = self._layout.pagings[group].ratio
        width = max(len(live.tables[group]) for live in rows)
        for index, live in enumerate(rows):
            row, own, name = found[index], live.tables[group], live.request.id
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
