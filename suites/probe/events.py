"""Events of a probe: facts about the server, a verdict per check, and coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvproof.harness.records.events import Exercised, PropertyVerdict, TargetStarted
from kvproof.suites.probe.asker import Seen
from kvproof.suites.probe.check import Verdict
from kvproof.suites.probe.session import Session

SUITE = "probe"


def started(session: Session, target: str) -> TargetStarted:
    """Return the event with the server's facts and the estimated sizes."""
    facts, sizes = session.facts, session.sizes
    profile: dict[str, Any] = {
        "model": facts.model,
        "prompts": _FORMS[facts.form],
        "longest": facts.longest,
        "log_probabilities": facts.logprobs,
        "token_ids": facts.token_ids,
        "salts": facts.salts,
        "cached_tokens": _counted(session),
        "metrics": facts.metrics,
        "block_size": sizes.step or sizes.block,
        "smallest_hit": sizes.smallest,
        "ladder": [list(rung) for rung in sizes.ladder],
        "unsupported": facts.missing,
    }
    version = ", ".join(filter(None, (facts.version, facts.model, sizes.sentence)))
    return TargetStarted(
        target=target, engine=facts.engine, version=version, profile=profile, isolation="server"
    )


_FORMS = {"ids": "token ids", "text": "text", "chat": "chats"}


def _counted(session: Session) -> str:
    if session.asker.metered:
        return "reported by /metrics"
    return "reported by answers" if session.asker.reports_cached else "not reported"


def property_verdict(verdict: Verdict, target: str) -> PropertyVerdict:
    """Return the event of a verdict."""
    about = verdict.about
    return PropertyVerdict(
        target=target,
        suite=SUITE,
        property=about.name,
        section=about.section,
        rules=list(about.rules),
        sentence=about.sentence,
        verdict=verdict.outcome,
        reason=verdict.reason,
        oracle="the server's own answers",
        checks=verdict.checks,
        situations=dict(verdict.situations),
    )


def exercised(session: Session, verdicts: Sequence[Verdict], target: str) -> Exercised:
    """Sum the coverage of all requests."""
    situations: Counter[str] = Counter()
    for verdict in verdicts:
        situations |= verdict.situations
    log = session.line.log
    operations = Counter(sent.path.removeprefix("/") for sent in log if not sent.left)
    operations["cancelled while running"] = sum(sent.left for sent in log)
    return Exercised(
        target=target,
        suite=SUITE,
        test_cases=len(log),
        operations={name: count for name, count in operations.items() if count},
        situations=dict(situations),
        hit_blocks=_hits(session.asker.seen, session.sizes.step or session.sizes.block),
        seconds=session.line.budget.elapsed,
    )


def _hits(seen: Sequence[Seen], block: int) -> dict[str, int]:
    """Blocks found -> prompts, the longest hits together."""
    found = [each.answer.cached for each in seen if each.answer.cached is not None]
    counts = Counter(each // max(1, block) for each in found)
    few = {str(blocks): counts[blocks] for blocks in sorted(counts) if blocks < _MANY}
    many = sum(count for blocks, count in counts.items() if blocks >= _MANY)
    return few | ({f"{_MANY}+": many} if many else {})


_MANY = 12
