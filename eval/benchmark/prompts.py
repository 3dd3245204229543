"""Prompt sets: templates with the placeholders of the official files, each named by its hash."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvproof.eval.benchmark.data import LETTERS, Sample
from kvproof.harness.decoding import read_bounded
from kvproof.harness.errors import UsageError

OWN = "kvproof 0-shot"

_OFFICIAL = {
    "68a162252bc9ff71d5d7abca3d69bb31aac3c35f832d657a2866f2018b8a6950": "LongBench 0-shot",
    "dadfd5e7de5f698436216679c316b4ce9b08cef95be236346d48e215dc98ee0f": "LongBench 0-shot CoT",
}
"""Digests of prompts of THUDM/LongBench, commit 2e00731f8d0b -> their names."""

_NAMES = ("DOC", "Q", "C_A", "C_B", "C_C", "C_D")
_SECOND = ("Q", "C_A", "C_B", "C_C", "C_D", "COT")
_PLACEHOLDER = re.compile(r"\$(DOC|Q|C_A|C_B|C_C|C_D|COT)\$")


class PromptSet(msgspec.Struct, frozen=True, kw_only=True):
    """One template, or a pair.

    `strip`: remove white space around fields, as the official script.
    """

    name: str
    sha256: str
    template: str
    strip: bool = False
    second: str = ""
    """Template of a second turn, with the first answer in the place of the document."""
    shipped: bool = False
    """OpenCompass's own."""

    def render(self, sample: Sample) -> str:
        """Fill in a sample.

        Every field is inserted once and unchanged, for any document.
        """
        return self._filled(self.template, self._fields(sample) | {"DOC": sample.context})

    def render_second(self, sample: Sample, thought: str) -> str:
        """Fill in a sample and the answer of the first turn."""
        return self._filled(self.second, self._fields(sample) | {"COT": thought})

    def _fields(self, sample: Sample) -> dict[str, str]:
        return dict(zip(_NAMES[1:], (sample.question, *sample.choices), strict=True))

    def _filled(self, template: str, fields: dict[str, str]) -> str:
        if self.strip:
            fields = {name: value.strip() for name, value in fields.items()}
        return _PLACEHOLDER.sub(lambda found: fields.get(found[1], found[0]), template)


def own_prompts() -> PromptSet:
    """Return the project's own 0-shot prompt."""
    template = _read(Path(__file__).parents[1] / "prompt_sets" / "kvproof_0shot.txt", _NAMES)
    return PromptSet(name=OWN, sha256=_digest(template), template=template)


def read_prompts(directory: Path, *, cot: bool = False) -> PromptSet:
    """Read the official prompts of a LongBench checkout, or of its prompts folder.

    `cot`: the pair of a prompt for a chain of thought and one for the letter. Raises UsageError if
    a file is missing or lacks a placeholder.
    """
    folder = directory / "prompts" if (directory / "prompts").is_dir() else directory
    if not cot:
        return _official([_read(folder / "0shot.txt", _NAMES)], "0shot.txt")
    first = _read(folder / "0shot_cot.txt", _NAMES)
    return _official([first, _read(folder / "0shot_cot_ans.txt", _SECOND)], "0shot_cot.txt")


def _official(templates: Sequence[str], name: str) -> PromptSet:
    digest = _digest(*templates)
    second = templates[1] if len(templates) > 1 else ""
    return PromptSet(
        name=_OFFICIAL.get(digest, name),
        sha256=digest,
        template=templates[0],
        strip=True,
        second=second,
    )


def opencompass_prompts(config: Path) -> PromptSet:
    """Read the prompt from a dataset configuration of OpenCompass. Raises UsageError."""
    try:
        tree = ast.parse(config.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {str(config)!r}: {error}", _INSTALL) from error
    found = [
        each.value.value
        for each in ast.walk(tree)
        if isinstance(each, ast.keyword) and each.arg == "prompt"
        if isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
    ]
    if len(found) != 1:
        raise UsageError(f"{str(config)!r} has {len(found)} prompts, not one", _INSTALL)
    template = found[0]
    for name, field in zip(_NAMES, _OPENCOMPASS_FIELDS, strict=True):
        template = template.replace(f"{{{field}}}", f"${name}$")
    _check(str(config), template, _NAMES)
    return PromptSet(
        name=f"OpenCompass {config.stem}",
        sha256=_digest(found[0]),
        template=template,
        shipped=True,
    )


def with_fields(template: str) -> str:
    """Return a template with the placeholders of OpenCompass."""
    for name, field in zip(_NAMES, _OPENCOMPASS_FIELDS, strict=True):
        template = template.replace(f"${name}$", f"{{{field}}}")
    return template


_OPENCOMPASS_FIELDS = ("context", "question", "choice_A", "choice_B", "choice_C", "choice_D")
_INSTALL = "kvproof eval install builds the environment that it is read from"


def _read(path: Path, names: Sequence[str]) -> str:
    try:
        template = read_bounded(path, what="the prompt", hint=_WHERE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompt {str(path)!r}: {error}", _WHERE) from error
    _check(str(path), template, names)
    return template


def _check(path: str, template: str, names: Sequence[str]) -> None:
    found = _PLACEHOLDER.findall(template)
    for each in names:
        if found.count(each) != 1:
            raise UsageError(
                f"the prompt {path!r} has ${each}$ {found.count(each)} times, not once", _WHERE
            )


def _digest(*templates: str) -> str:
    """SHA-256 of one file; for a pair, of both digests."""
    each = [hashlib.sha256(template.encode()).hexdigest() for template in templates]
    return each[0] if len(each) == 1 else hashlib.sha256("".join(each).encode()).hexdigest()


_WHERE = "--prompts takes a checkout of THUDM/LongBench, whose folder prompts is read"


def rotated(sample: Sample, by: int = 1) -> Sample:
    """The same question with every choice moved by this many letters (pass C)."""
    at = LETTERS.index(sample.answer) + by
    choices = {
        f"choice_{letter.lower()}": sample.choices[(n - by) % len(LETTERS)]
        for n, letter in enumerate(LETTERS)
    }
    return msgspec.structs.replace(sample, answer=LETTERS[at % len(LETTERS)], **choices)
