"""The matrix of certificates: what counts, what is compared, and what others may write in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.errors import UsageError
from kvproof.suites.specification.certificate import Certificate
from kvproof.suites.specification.classes import CLASSES, VERSION
from kvproof.suites.tests.documents import certificates, collection
from kvproof.suites.tests.documents.collection import collected, histories
from kvproof.suites.tests.specification.test_certificates import CORE, EXTENDED, issued


def put(folder: Path, name: str, certificate: Certificate, **changes: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(certificate, **changes)))
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Certificate:
    (tmp_path / "run").mkdir()
    return issued(tmp_path / "run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "certificates"
    found.mkdir()
    return found


def shown(folder: Path) -> str:
    return certificates.page(collected([folder]))


def rows(html: str) -> list[str]:
    return [line for line in html.splitlines() if line.startswith("<tr>")]


def test_a_gap_is_no_failure(folder: Path, whole: Certificate) -> None:
    put(folder, "a", whole, target="vllm==0.33.0", version="0.33.0")
    (row,) = rows(shown(folder))
    assert row.count("no certificate") == len(CLASSES) - 1
    assert "✓&nbsp;conformant" in row
    assert "✗" not in row


def test_the_newest_certificate_of_a_release_stands_in_its_cell(
    folder: Path, whole: Certificate
) -> None:
    (folder.parent / "red").mkdir()
    red = issued(folder.parent / "red", {CORE: "fail"})
    put(folder, "b", whole, started="2026-02-01T00:00:00Z")
    put(folder, "a", red, started="2026-03-01T00:00:00Z")
    (row,) = rows(shown(folder))
    assert "✗&nbsp;not&nbsp;conformant" in row


def test_newer_releases_come_first(folder: Path, whole: Certificate) -> None:
    for version in ("0.9.0", "0.33.0", "0.22.1"):
        put(folder, version, whole, target=f"vllm=={version}", version=version)
    releases = [row.split("<td>")[2][:6] for row in rows(shown(folder))]
    assert releases[:3] == ["0.33.0", "0.22.1", "0.9.0<"]


@pytest.mark.parametrize(
    "other",
    [
        {"specification": "1.0"},
        {"kvproof": "0.16.0"},
        {"machine": {"accelerator": "H200"}},
        {"config": {"budget": "nightly", "level": "full"}},
    ],
    ids=["rules", "judge", "device", "budget"],
)
def test_only_what_is_equal_is_compared(
    folder: Path, whole: Certificate, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvproof.suites.specification import verification

    monkeypatch.setattr(verification, "CURRENT", ("1.0", VERSION))
    put(folder, "a", whole, target="vllm==1.0", version="1.0")
    put(folder, "b", whole, target="vllm==2.0", version="2.0")
    put(folder, "c", whole, target="vllm==3.0", version="3.0", **other)
    found = histories(collected([folder]))
    assert sorted([each.version for each in row] for row in found.values()) == [
        ["1.0", "2.0"],
        ["3.0"],
    ]


def test_a_history_names_the_rules_that_changed(folder: Path, whole: Certificate) -> None:
    (folder.parent / "red").mkdir()
    red = issued(folder.parent / "red", {EXTENDED: "fail"})
    put(folder, "a", whole, target="vllm==1.0", version="1.0")
    put(folder, "b", red, target="vllm==2.0", version="2.0")
    first, second = rows(shown(folder).partition("## History")[2])
    assert "→" not in first
    assert ": pass → fail" in second


def test_a_refused_file_is_a_row_with_its_reason(folder: Path, whole: Certificate) -> None:
    (folder / "a.json").write_text("{")
    put(folder, "b", whole, outcome="not conformant")
    put(folder, "c", whole, specification="0.1")
    (folder / "d.json").mkdir()
    (folder / "e.json").write_bytes(b" " * (collection.MOST_BYTES + 1))
    (folder / "f.json").write_text("[" * 100_000)
    refused = rows(shown(folder).partition("## Not counted")[2])
    reasons = ["it is no certificate", "says", "specification 0.1", "no file", "4 MiB", "is no"]
    assert [reason in row for reason, row in zip(reasons, refused, strict=True)] == [True] * 6
    assert rows(shown(folder).partition("## History")[0]) == []


HOSTILE = (
    '<script>alert(1)</script>"><!-- generated: rules -->|`[x](y)\n\n# head\x1b[31m' + "a" * 9999
)


def test_text_of_others_is_escaped_and_bounded(folder: Path, whole: Certificate) -> None:
    rule = whole.rules[0]
    bad = msgspec.structs.replace(rule.properties[0], verdict="fail", reason=HOSTILE)
    rules = [msgspec.structs.replace(rule, outcome="fail", properties=[bad]), *whole.rules[1:]]
    put(folder, "a", whole, target=HOSTILE, version=HOSTILE, machine={HOSTILE: HOSTILE},
        build={HOSTILE: HOSTILE}, rules=rules, outcome="not conformant")  # fmt: skip
    put(folder, "b", whole, specification=HOSTILE)
    (entry, _) = collected([folder])
    assert entry.certificate
    for html in (shown(folder), certificates._rules(entry.certificate)):
        assert "<script>" not in html
        assert "<!--" not in html
        assert "\x1b" not in html
        assert "\n# head" not in html
        assert max(map(len, html.splitlines())) < 20_000


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of certificates"):
        collected([tmp_path / "none"])


def test_the_folder_of_the_repository_counts() -> None:
    found = collected([certificates.FOLDER])
    assert found
    assert [each for each in found if each.problem] == []
