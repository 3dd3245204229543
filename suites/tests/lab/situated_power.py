"""Faults of one situation each, in `kvproof serve`: which of them a verdict on the server finds.

python -m kvproof.suites.tests.lab.situated_power divergence --kept table.json --limit 300
python -m kvproof.suites.tests.lab.situated_power probe --kept probe.json --faults at-1k at-idle

For each fault a server (`none`: a correct one), and one run of `kvproof eval divergence` or of
`kvproof probe` with default options; --options adds some. Prints hits that were struck, the
verdict, what it has not seen, requests and seconds. The same command goes on with the faults that
the file has not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import msgspec

from kvproof.suites.faults.eval_server import FAULTS
from kvproof.suites.tests.lab.stress.http import process
from kvproof.suites.tests.probe.probe_url_faults import RUN

VERDICTS: Mapping[int, str] = {0: "PASS", 1: "FAIL", 3: "inconclusive"}
"""Exit code -> verdict."""

_FAULTY = (
    "import sys; from kvproof.suites.faults.eval_server import main; main([{!r}] + sys.argv[1:])"
)
_ALL = (
    "none", *(each for each in FAULTS if each.startswith("at-")),
    "namespace_ignored", "image_ignored", "image_of_an_earlier_chat",
)  # fmt: skip
_RUN = "from kvproof.harness.cli import main; main()"
_VERBS: Mapping[str, Sequence[str]] = {
    "divergence": ("eval", "divergence", "--url", "{url}/v1"),
    "probe": ("probe", "{url}"),
}
_SAID = re.compile(r"[x?+ ] |.*\bnot seen\b")


class Row(msgspec.Struct, frozen=True):
    """One fault, judged."""

    fault: str
    struck: str
    """Hits that it struck, of all; empty if the fault does not count them."""
    verdict: str
    said: str
    """Lines of the output with the verdict."""
    requests: int
    seconds: float


def judged(fault: str, verb: str, serve: Sequence[str], options: Sequence[str]) -> Row:
    """Judge one server, with these options of `kvproof serve` and of the verb."""
    with (
        TemporaryDirectory() as output,
        mock.patch.object(process, "_RUN", (_FAULTY if fault in FAULTS else RUN).format(fault)),
        process.serving(*serve) as server,
    ):
        asked = [each.format(url=server.url) for each in _VERBS[verb]]
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _RUN, *asked, "--output", f"{output}/run", *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - begun
        requests = sum(
            n for name, n in server.metrics().items() if name.startswith("kvproof_requests_total")
        )
        server.end()
        struck = re.search(r"struck (.*)", server.errors())
    verdict = VERDICTS.get(done.returncode, f"exit {done.returncode}: {done.stderr[-200:]}")
    said = "\n".join(each for each in done.stdout.splitlines() if _SAID.match(each))
    return Row(fault, struck[1] if struck else "", verdict, said, int(requests), seconds)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the rows in Markdown."""
    yield "| fault | hits struck | verdict | requests | seconds |"
    yield "| --- | --- | --- | --: | --: |"
    for each in rows:
        cells = (each.fault, each.struck or "-", each.verdict, each.requests, f"{each.seconds:.0f}")
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Judge faults until the time is over, and print all that are known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=_VERBS)
    parser.add_argument("--faults", nargs="+", help="all of one situation by default")
    parser.add_argument("--kept", type=Path, required=True, help="file of the rows")
    parser.add_argument("--limit", type=float, default=300, help="seconds until the last begins")
    parser.add_argument("--serve", default="--model symbolic", help="options of kvproof serve")
    parser.add_argument("--options", default="", help="further options of the verb")
    asked = parser.parse_args()
    begun, kept = time.monotonic(), asked.kept
    rows = msgspec.json.decode(kept.read_bytes(), type=list[Row]) if kept.exists() else []
    for fault in asked.faults or _ALL:
        if fault in {each.fault for each in rows} or time.monotonic() - begun > asked.limit:
            continue
        rows.append(judged(fault, asked.verb, asked.serve.split(), asked.options.split()))
        kept.write_bytes(msgspec.json.encode(rows))
        sys.stdout.write(f"{fault}: {rows[-1].said}\n\n")
    sys.stdout.write("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
