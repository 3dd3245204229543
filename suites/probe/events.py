"""Events of a probe: facts about the server, a verdict per check, coverage, failures.

Evidence of a failure: its requests as a file, and a plain script that repeats them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvproof.harness.records.events import (
    Exercised,
    Failure,
    PropertyVerdict,
    Step,
    TargetStarted,
)
from kvproof.harness.served.situations import SITUATIONS, unseen
from kvproof.suites.probe.asker import Seen
from kvproof.suites.probe.check import METRICS, REST, Verdict
from kvproof.suites.probe.content import FIRST_ID, HEAD, LETTERS
from kvproof.suites.probe.server_connection import Sent
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
        unseen=list(unseen(SITUATIONS, session.asker.situations)),
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

# --- evidence ---

_MOST_STEPS = 30
_MOST_SHOWN = 6

_SCRIPT = '''"""Send the requests of a failure again: {property}.

    python {name} [ADDRESS]

Every salt, and the first words of every prompt, are others each time, so that nothing of an
earlier run is found. Concurrent and cancelled requests are sent one after the other.
"""
import json, os, pathlib, random, sys, urllib.request

url = sys.argv[1] if len(sys.argv) > 1 else {url!r}
headers = {{"Content-Type": "application/json"}}
if os.environ.get("KVPROOF_PROBE_KEY"):
    headers["Authorization"] = "Bearer " + os.environ["KVPROOF_PROBE_KEY"]
letters, salt = {letters!r}, "-%x" % random.getrandbits(64)
mixed = random.sample(letters, len(letters))
words = dict(zip(map(ord, letters), mixed))
ids = {{{first} + at: {first} + letters.index(mixed[at]) for at in range(len(letters))}}


def other(prompt):
    if isinstance(prompt, str):
        return prompt[:{signs}].translate(words) + prompt[{signs}:]
    if prompt and isinstance(prompt[0], int):
        return [ids.get(token, token) for token in prompt[:{head}]] + prompt[{head}:]
    return [part | {{key: other(part[key]) for key in ("content", "text") if key in part}}
            for part in prompt]


for step in json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())["steps"]:
    body = {{key: value for key, value in step["body"].items() if key != "stream"}}
    body |= {{key: other(body[key]) for key in ("prompt", "messages") if key in body}}
    if "cache_salt" in body:
        body["cache_salt"] += salt
    request = urllib.request.Request(url + step["path"], json.dumps(body).encode(), headers)
    answer = json.load(urllib.request.urlopen(request))
    choice = answer["choices"][0]
    print(repr(choice["text"] if "text" in choice else choice["message"]["content"]),
          answer.get("usage"))
'''


class Files(Protocol):
    """Storage of evidence."""

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file; returns its path."""


def failure(verdict: Verdict, files: Files, *, target: str, url: str) -> Failure:
    """Store requests and script of a failed check; returns its event."""
    about, name = verdict.about, f"failures/{verdict.about.name}"
    steps = list(_steps(verdict.history))
    script = _SCRIPT.format(
        property=about.name, name=f"{about.name}.py", url=url,
        first=FIRST_ID, letters=LETTERS, head=HEAD, signs=2 * HEAD,
    )  # fmt: skip
    log = {"property": about.name, "url": url, "reason": verdict.reason, "steps": steps}
    files.write_file(f"{name}.json", json.dumps(log, indent=1, default=repr).encode())
    files.write_file(f"{name}.py", script.encode())
    return Failure(
        target=target,
        property=about.name,
        rules=list(about.rules),
        oracle="the server's own answers",
        sentence=verdict.reason,
        detail=verdict.detail,
        fingerprint=hashlib.sha256(about.name.encode()).hexdigest()[:12],
        op_log=f"{name}.json",
        script=script,
        script_path=f"{name}.py",
        history=list(_history(verdict)),
    )


def _steps(history: Sequence[Sent]) -> Iterator[dict[str, Any]]:
    for sent in history[-_MOST_STEPS:]:
        reported: Any = (
            sent.answer._asdict() if sent.answer else str(sent.trouble or "cancelled while running")
        )
        yield {"path": sent.path, "body": sent.body, "answer": reported}


def _history(verdict: Verdict) -> Iterator[Step]:
    recent = verdict.history[-_MOST_STEPS:]
    wrong = _wrong(verdict, recent)
    for place, sent in enumerate(recent):
        answer = (
            sent.answer.summary if sent.answer else str(sent.trouble or "cancelled while running")
        )
        note = "this is wrong" if place == wrong else ""
        yield Step(op=_verb(sent), arguments=_shown(recent, place), answer=answer, note=note)


def _wrong(verdict: Verdict, recent: Sequence[Sent]) -> int:
    """Return the index of the wrong answer; the last one by default."""
    if verdict.about in (METRICS, REST):
        return -1  # no answer is: /metrics counts other requests too
    if verdict.shows is None:
        return len(recent) - 1
    reported = verdict.shows[:4]
    places = [
        place for place, sent in enumerate(recent) if sent.answer and sent.answer[:4] == reported
    ]
    return places[-1] if places else len(recent) - 1


def _verb(sent: Sent) -> str:
    return "leave" if sent.left else "chat" if "messages" in sent.body else "complete"


def _shown(steps: Sequence[Sent], place: int) -> str:
    body = steps[place].body
    prompt, salt = _prompt(body), str(body.get("cache_salt") or "")
    unit = "ids" if isinstance(prompt, list) else "characters"
    shared = [(_common(prompt, _prompt(steps[at].body)), at + 1) for at in range(place)]
    most, number = max(shared, default=(0, 0), key=lambda each: each[0])
    parts = [f"{len(prompt)} {unit}"]
    if most >= HEAD:
        parts.append(f"the first {most} as in {number}" if most < len(prompt) else f"as {number}")
    if place == 0 or most < len(prompt):
        parts.append(f"ending in {_end(prompt)}")
    return ", ".join([*parts, *([f"salt {salt[-6:]}"] if salt else [])])


def _end(prompt: Sequence[Any]) -> str:
    if isinstance(prompt, str):
        return repr(prompt[-2 * _MOST_SHOWN :])
    return " ".join(map(str, prompt[-_MOST_SHOWN:]))


def _common(one: Sequence[Any], two: Sequence[Any]) -> int:
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(two)))


def _prompt(body: dict[str, Any]) -> Sequence[Any]:
    prompt: Sequence[Any] = body["prompt"] if "prompt" in body else _spoken(body["messages"])
    return prompt


def _spoken(messages: Sequence[dict[str, Any]]) -> str:
    parts = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            parts.append(content)
        else:
            parts += [part.get("text") or _image(part) for part in content]
    return " | ".join(parts)


def _image(part: dict[str, Any]) -> str:
    digest = hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()[:6]
    return f"<image {digest}>"
