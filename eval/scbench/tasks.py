"""Prompts and scores of the tasks.

The wording of prompts is our own. Answers are scored as by the public scorer: the value stands in
the text (`kv`, `prefix_suffix`), the share of names that stand in it (`vt`), the letter
(`choice_eng`), which we also find after "The correct answer is".
"""

from __future__ import annotations

import re

from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.scbench.data import LETTERS, Session, Task, Turn

MOST_TOKENS: dict[Task, int] = {"kv": 150, "prefix_suffix": 150, "vt": 30, "choice_eng": 40}
"""Tokens of an answer, as published."""

_TASKS: dict[Task, str] = {
    "kv": "Here is a JSON object. Look up the values of the keys that are asked for.",
    "prefix_suffix": "Here is a list of strings. Find the strings that are asked for.",
    "vt": "Here are assignments of variables in a text. Follow them.",
    "choice_eng": "",
}

_CHOICE_AT = own_prompts().template.index("Question: $Q$")
_CHOICE_FIRST = own_prompts().template[:_CHOICE_AT]
_CHOICE = own_prompts().template[_CHOICE_AT:]


def shared_part(session: Session) -> str:
    """Text that all prompts of a session begin with."""
    if session.task == "choice_eng":
        return _CHOICE_FIRST.replace("$DOC$", session.context)
    return f"{_TASKS[session.task]}\n\n{session.context}\n\n"


def question(task: Task, turn: Turn) -> str:
    """Text of a question, without the context."""
    if task != "choice_eng":
        return turn.input
    fields = dict(zip(("C_A", "C_B", "C_C", "C_D"), turn.options, strict=True), Q=turn.input)
    return re.sub(r"\$(Q|C_[A-D])\$", lambda found: fields[found[1]], _CHOICE)


def score(task: Task, text: str, turn: Turn) -> float:
    """Share of the answer that a text has, 0 to 1."""
    if task == "choice_eng":
        return float(_letter(text, turn) == LETTERS[turn.options.index(turn.answers[0])])
    if task == "vt":
        found = [each.lower() in text.lower() for each in turn.answers]
        return sum(found) / len(found)
    return float(all(each in text for each in turn.answers))


_LETTER = re.compile(r"(?:answer is|answer:|option is)\s*\(?([A-D])\b|(?:^|\s)\(?([A-D])\b")


def _letter(text: str, turn: Turn) -> str | None:
    """By the strict rule, else the whole text as letter or option, else the first letter."""
    if strict := extract(text):
        return strict
    plain = text.strip()
    if plain in turn.options:
        return LETTERS[turn.options.index(plain)]
    found = _LETTER.search(plain)
    return (found[1] or found[2]) if found else None
