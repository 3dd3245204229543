"""`kvproof probe` of `kvproof serve` as a user starts it: a verdict, or the option that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from kvproof.suites.framework.property import Property
from kvproof.suites.probe import check
from kvproof.suites.tests.lab.stress.http.process import serving
from kvproof.suites.tests.probe.probe_url_kit import JUDGED, probed


def test_a_server_without_options_passes(tmp_path: Path) -> None:
    with serving("--model", "symbolic") as server:
        found = probed(server.url, tmp_path)
    assert found.done.code == 0, found.done.out
    assert found.named("pass") == JUDGED


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="six seconds of requests")
@pytest.mark.parametrize(
    ("options", "of", "words"),
    [
        (("--num-blocks", "40"), check.DEEP, "--depths 1000 judges"),
        (("--max-model-len", "512"), check.BLOCKS, "smaller blocks"),
    ],
    ids=["small cache", "short prompts"],
)
def test_what_stays_open_names_the_option_that_helps(
    options: tuple[str, ...], of: Property, words: str, tmp_path: Path
) -> None:
    with serving("--model", "symbolic", *options) as server:
        found = probed(server.url, tmp_path)
    assert (found.done.code, found.named("inconclusive")) == (3, {of.name})
    assert words in found.verdicts[of.name].reason
