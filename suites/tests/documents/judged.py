"""The properties that judge each engine, from its pages: `suites/known_bugs/judged.toml`.

`python -m kvproof.suites.tests.documents.judged` writes it after the pages are written.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "targets"
FILE = ROOT / "suites" / "known_bugs" / "judged.toml"
NEWEST = {
    "vLLM": ("vllm-0.33.0", "vllm-engine-0.33.0"),
    "SGLang": ("sglang-0.5.23",),
    "LMDeploy": ("lmdeploy-0.18.0",),
    "LMCache": ("lmcache-0.5.6",),
}
"""Engine -> the pages of its newest release."""


def judged() -> str:
    """Return the file's text; pages are derived from profile and provenance."""
    lines = [
        "# Written by `python -m kvproof.suites.tests.documents.judged`, from docs/targets.",
        "",
    ]
    for engine, pages in NEWEST.items():
        names = sorted({name for page in pages for name in _names(page)})
        lines += [f"{engine} = [", *(f'    "{name}",' for name in names), "]", ""]
    return "\n".join(lines)


def _names(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"`(\w+)`", text.partition("## Properties that judge it")[2])


if __name__ == "__main__":
    FILE.write_text(judged(), encoding="utf-8")
