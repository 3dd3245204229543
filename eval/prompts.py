"""Prompt sets: templates with the placeholders of the official files, each named by its hash."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from kvproof.eval.data import LETTERS, Sample
from kvproof.harness.errors import UsageError

OWN = "kvproof 0-shot"
OFFICIAL = "LongBench 0-shot"

_OFFICIAL_SHA256 = "68a162252bc9ff71d5d7abca3d69bb31aac3c35f832d657a2866f2018b8a6950"
"""Of prompts/0shot.txt of THUDM/LongBench, commit 2e00731f8d0b."""

_PLACEHOLDER = re.compile(r"\$(DOC|Q|C_A|C_B|C_C|C_D)\$")
_NAMES = ("DOC", "Q", "C_A", "C_B", "C_C", "C_D")


class PromptSet(msgspec.Struct, frozen=True, kw_only=True):
    """One template. `strip`: white space around every field goes, as in the official script."""

    name: str
    sha256: str
    template: str
    strip: bool = False

    def render(self, sample: Sample) -> str:
        """Fill in a sample. Every field goes in once and unchanged, whatever is in a document."""
        fields = dict(zip(_NAMES, (sample.context, sample.question, *sample.choices), strict=True))
        if self.strip:
            fields = {name: value.strip() for name, value in fields.items()}
        return _PLACEHOLDER.sub(lambda found: fields[found[1]], self.template)


def own_prompts() -> PromptSet:
    """Return the project's own 0-shot prompt."""
    path = Path(__file__).parent / "prompt_sets" / "kvproof_0shot.txt"
    return _prompt_set(path, OWN, strip=False)


def read_prompts(directory: Path) -> PromptSet:
    """Read the official 0-shot prompt of a LongBench checkout, or of its prompts folder.

    Raises UsageError if it is not there or lacks a placeholder.
    """
    folder = directory / "prompts" if (directory / "prompts").is_dir() else directory
    return _prompt_set(folder / "0shot.txt", "", strip=True)


def _prompt_set(path: Path, name: str, *, strip: bool) -> PromptSet:
    try:
        data = path.read_bytes()
        template = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompt {str(path)!r}: {error}", _WHERE) from error
    found = _PLACEHOLDER.findall(template)
    for each in _NAMES:
        if found.count(each) != 1:
            raise UsageError(
                f"the prompt {str(path)!r} has ${each}$ {found.count(each)} times, not once", _WHERE
            )
    digest = hashlib.sha256(data).hexdigest()
    known = OFFICIAL if digest == _OFFICIAL_SHA256 else path.name
    return PromptSet(name=name or known, sha256=digest, template=template, strip=strip)


_WHERE = "--prompts takes a checkout of THUDM/LongBench, whose prompts/0shot.txt is read"


def rotated(sample: Sample, by: int = 1) -> Sample:
    """The same question with every choice moved on by so many letters (pass C)."""
    choices = [sample.choices[(n - by) % len(LETTERS)] for n in range(len(LETTERS))]
    return msgspec.structs.replace(
        sample,
        choice_a=choices[0],
        choice_b=choices[1],
        choice_c=choices[2],
        choice_d=choices[3],
        answer=LETTERS[(LETTERS.index(sample.answer) + by) % len(LETTERS)],
    )
