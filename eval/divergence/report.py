"""A run as verdicts, figures and tables."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvproof.eval.divergence.figures import Figures
from kvproof.eval.divergence.judge import Judgement, Row, judge
from kvproof.eval.divergence.orders import OPTIONS
from kvproof.eval.divergence.records import KEY, Options, Pair, Served, evidence
from kvproof.eval.divergence.signs import ALLOWED
from kvproof.eval.run.records import EvalRun, Lost, ServerDied
from kvproof.eval.verdict.evaluated import Evaluated, Judged, Table, Verdict
from kvproof.harness.served.situations import SITUATIONS
from kvproof.reports.values.text import MARKS, percent, plural

TITLE = "Divergence per token"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands, complete or not."""

    options: Options
    servers: tuple[Served, ...]
    judgement: Judgement
    lost: tuple[Lost, ...]
    deaths: tuple[ServerDied, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict as a word."""
        return "fail" if self.deaths else self.judgement.verdict


def evaluated(run: EvalRun) -> Evaluated:
    """Judge the answers of a run. Raises UsageError."""
    options, records = evidence(run)
    found = Summary(
        options=options,
        servers=tuple(each for each in records if isinstance(each, Served)),
        judgement=judge(options, records),
        lost=tuple(each for each in records if isinstance(each, Lost)),
        deaths=tuple(each for each in records if isinstance(each, ServerDied)),
    )
    return Evaluated(
        benchmark=KEY,
        title=TITLE,
        lines=tuple(sentences(found)),
        servers=found.servers,
        deaths=found.deaths,
        rows=tuple(map(_judged, found.judgement.rows)),
        tables=(*tables(found), _measured(found)),
        doubts=found.judgement.doubts,
        verdict=found.verdict,
        sentence=verdict_sentence(found),
        summary=found,
        file="divergence.json",
    )


def _judged(row: Row) -> Judged:
    return Judged(
        target=row.configuration,
        part="",
        sentence="hits give the log-probabilities of recomputed requests",
        verdict=row.verdict,
        reasons=row.reasons,
        pairs=row.whole.answers,
        figures={"largest_difference": row.whole.largest},
    )


def sentences(summary: Summary) -> list[str]:
    """Describe the run: servers, models, size, error rate."""
    options = summary.options
    found = [
        f"{plural(options.documents, 'document')}, prompts of up to {options.most_tokens} tokens, "
        f"{plural(options.tokens, 'token')} of each answer, seed {options.seed}; a correct run "
        f"fails with probability {options.alpha:g} at most"
        + ("; the engine promises equal bits" if options.exact else "")
    ]
    found += [_server(each) for each in summary.servers]
    return found


def _server(served: Served) -> str:
    named = f"{served.engine} {served.version}".strip()
    engine = f"{named}, " if named else ""
    return f"{served.configuration} ({served.role}): {engine}{served.model}, {_gives(served)}"


def _gives(served: Served) -> str:
    able = served.abilities
    top = "no log-probabilities" if able.top is None else f"the {able.top} likeliest tokens"
    return f"{top}, {'token ids' if able.token_ids else 'texts'}"


def verdict_sentence(summary: Summary) -> str:
    """The verdict and its confidence."""
    rows = summary.judgement.rows
    if summary.deaths:
        return "a server died"
    if summary.verdict == "fail":
        names = [row.configuration for row in rows if row.verdict == "fail"]
        return f"{' and '.join(names)}: not what is recomputed"
    if summary.verdict == "inconclusive":
        return "the run does not show what it is meant to show"
    least = max(row.at_most for row in rows)
    limit = max(row.limit for row in rows)
    like = (
        f"hits answer like recomputed requests: no token is off by {limit:.2g} nats; with 95 % "
        f"confidence fewer than {percent(least)} of hits are"
        if limit
        else f"hits answer exactly like recomputed requests; with 95 % confidence fewer than "
        f"{percent(least)} do not"
    )
    return f"{like}; {_not_seen(rows)}"


def _not_seen(rows: Sequence[Row]) -> str:
    """Name what a pass has not judged."""
    missing = [name for name in SITUATIONS if any(name in row.unseen for row in rows)]
    never = [name for name in missing if any(name in row.unaskable for row in rows)]
    asked = [name for name in missing if name not in never]
    how = f"; not to be had by requests: {', '.join(never)}" if never else ""
    how += "" if all(row.counted for row in rows) else "; hits are counted by construction"
    return f"not seen: {', '.join(asked) or 'nothing'}{how}"


def tables(summary: Summary) -> list[Table]:
    """Verdicts, the floor, groups, and the worst answers."""
    found = [_rows(summary), _floor(summary)]
    for row in summary.judgement.rows:
        found.append(_situations(row))
        found += [
            _figures(f"{row.configuration}, by {by}", groups) for by, groups in row.by.items()
        ]
        if row.worst:
            found.append(_worst(row))
    return [each for each in found if each.rows]


def _measured(summary: Summary) -> Table:
    head = ("server", "role", "engine", "model", "SHA-256 of the weights", "gives", "started as")
    rows = tuple(
        (
            each.configuration, each.role, f"{each.engine} {each.version}".strip() or
            "not reported", each.model, each.weights or "not on this machine", _gives(each),
            each.started,
        )
        for each in summary.servers
    )  # fmt: skip
    return Table("What was measured", head, rows, len(head))


def _rows(summary: Summary) -> Table:
    head = ("hits of", "answers", "hits", "tokens", "largest", "p99.9", "mean KL", "limit",
            "beyond", "p many", "wrong at most", "verdict")  # fmt: skip
    rows = tuple(
        (
            row.configuration, *_cells(row.whole)[1:4], *_cells(row.whole)[5:],
            _nats(row.limit), str(row.whole.beyond), f"{row.p_many:.2g}", percent(row.at_most),
            MARKS[row.verdict].word,
        )
        for row in summary.judgement.rows
    )  # fmt: skip
    note = (
        "Differences per token against the recomputed answer, teacher-forced: largest, 99.9th "
        "percentile (log-probability, nats), mean Kullback-Leibler divergence. Limit: largest "
        "difference of a correct run. Beyond: answers over it. P many: whether most documents "
        "differ more than recomputed ones (sign test)."
    )
    narrow = (0, 2, 3, 4, 5, 7, 8, 11)
    return Table("Hits against recomputed answers", head, rows, 1, note, narrow)


_HEAD = ("", "answers", "hits", "tokens", "flips", "largest", "p99.9", "mean KL")


def _situations(row: Row) -> Table:
    head = ("situation", "", "answers", "hits", "documents", "far off", "p")
    cells = [
        (
            each.situation, SITUATIONS[each.situation].phrase, str(each.answers), str(each.hits),
            str(each.documents), str(each.off), f"{each.p:.2g}",
        )
        for each in row.seen
    ]  # fmt: skip
    cells += [(n, _never(n, row), "0", "0", "0", "0", "") for n in row.unseen]
    how = "" if row.counted else " The server reports no hits: they count by construction."
    note = (
        f"What occurred, and what this verdict has not seen. P: for all situations together.{how}"
    )
    title = f"{row.configuration}, situations"
    return Table(title, head, tuple(cells), 2, note, narrow=(0, 2, 3, 5))


def _never(name: str, row: Row) -> str:
    phrase = SITUATIONS[name].phrase
    if name not in row.unaskable:
        return phrase
    option = OPTIONS.get(name)
    return f"{phrase}: {f'needs {option}' if option else 'not to be had by requests'}"


def _floor(summary: Summary) -> Table:
    rows = tuple(_cells(each) for each in summary.judgement.floor)
    note = (
        "Recomputed once more: again alone, together with other requests, and by other correct "
        f"servers. Differences up to {ALLOWED:g} nats count as rounding unless --exact is given."
    )
    head = ("floor", *_HEAD[1:])
    narrow = tuple(range(len(head)))
    return Table("Floor: recomputed against recomputed", head, rows, 1, note, narrow)


def _figures(title: str, found: Sequence[Figures]) -> Table:
    rows = tuple((*_cells(each), str(each.beyond)) for each in found)
    return Table(title, (*_HEAD, "beyond"), rows, 1, narrow=tuple(range(len(_HEAD) + 1)))


def _cells(each: Figures) -> tuple[str, ...]:
    return (
        each.name, str(each.answers), str(each.hits), f"{each.places:,}", str(each.flips),
        _nats(each.largest), _nats(each.p999), _nats(each.mean_kl),
    )  # fmt: skip


def _nats(value: float) -> str:
    return "0" if not value else f"{value:.2g}"


def _worst(row: Row) -> Table:
    head = ("document", "pass", "prompt", "cached", "first place", "at", "largest")
    rows = tuple(_answer(each, row.limit) for each in row.worst)
    note = "First place: the first token of the answer beyond the limit; at: the largest."
    title = f"{row.configuration}, answers beyond the limit"
    return Table(title, head, rows, 2, note, narrow=tuple(range(len(head))))


def _answer(each: Pair, limit: float) -> tuple[str, ...]:
    first = next(at for at, v in zip(each.places, each.largest, strict=True) if v > limit)
    worst = max(range(len(each.places)), key=lambda index: each.largest[index])
    return (
        str(each.number), each.phase, str(each.prompt_tokens), str(each.cached_tokens),
        str(first), str(each.places[worst]), _nats(each.largest[worst]),
    )  # fmt: skip
