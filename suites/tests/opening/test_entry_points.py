"""Names of entry points have one owner, and a bad one is a row with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import registry
from kvproof.harness.isolation.registry import expand, list_targets, open_handle
from kvproof.kernels import registry as kernels
from kvproof.kernels.entry_points import offers, usable
from kvproof.suites.tests.cli.cli_kit import here, kvproof
from kvproof.suites.tests.opening.package_kit import Install, install
from kvproof.suites.tests.project.test_layout import PRODUCT, named

__all__ = ["install"]

FACTORY = "kvproof.suites.tests.adapters.worker_fakes:make_toy"
LOG = Path(__file__).parents[2] / "corpus" / "split_node_gives_back_whole_table.json"
GROUPS = [registry.GROUP, kernels.GROUP]
OWN = {registry.GROUP: "reference", kernels.GROUP: "torch"}
BAD = [
    ("toy = no such thing", "toy", "'no such thing' is not of the form"),
    ("toy = json", "toy", "'json' is not of the form package.module:function"),
    ("toy =", "toy", "'' is not of the form"),
    (f"a:b = {FACTORY}", "a:b", "is no name of letters"),
    (f"vllm==9.9.9 = {FACTORY}", "vllm", "is not of the form"),
    (f"t\x1b[31m = {FACTORY}", "t?[31m", "is no name of letters"),
]


def problems(group: str) -> dict[str, str]:
    return {each.name: each.problem for each in offers(group) if each.problem}


@pytest.mark.parametrize("group", GROUPS)
def test_kvproofs_own_names_are_not_for_others(group: str, install: Install) -> None:
    before = usable(offers(group))
    install("thief", f"{OWN[group]} = {FACTORY}", group=group)
    assert usable(offers(group)) == before
    assert before[OWN[group]].ours
    reason = problems(group)[OWN[group]]
    assert reason == "the name is kvproof's own, and thief 1.0 offers it"


def test_the_reference_stays_what_it_is(install: Install) -> None:
    install("athief", f"reference = {FACTORY}", f"vllm = {FACTORY}", f"all = {FACTORY}")
    with open_handle("reference") as handle:
        assert (handle.isolation, handle.profile.engine) == ("in_process", "reference")
    rows = [row for row in list_targets() if "athief 1.0" in row.state]
    assert [row.name for row in rows] == ["all", "reference", "vllm"]
    assert all(row.state.startswith("not usable: ") for row in rows)
    assert expand(["all"])[0] == "reference"


def test_our_own_modules_named_by_others_are_no_offer_of_ours(install: Install) -> None:
    install("another", "twin = kvproof.harness.adapters.reference.target:make_target")
    with open_handle("twin") as handle:
        assert handle.isolation == "worker"


@pytest.mark.parametrize("group", GROUPS)
def test_a_name_of_two_packages_is_an_error_that_names_both(group: str, install: Install) -> None:
    install("one", f"toy = {FACTORY}", group=group)
    install("two", f"toy = {FACTORY}", group=group)
    assert problems(group)["toy"].startswith("one 1.0 and two 1.0 offer the same name; uninstall")
    assert "toy" not in usable(offers(group))
    opening = (lambda: open_handle("toy")) if group == registry.GROUP else provider
    with pytest.raises((UsageError, LookupError), match=r"one 1\.0 and two 1\.0"):
        opening()


def provider() -> object:
    return kernels.provider("toy")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("line", "name", "reason"), BAD, ids=map(str, range(len(BAD))))
def test_a_bad_entry_point_is_a_row(
    group: str, line: str, name: str, reason: str, install: Install
) -> None:
    install("careless", line, group=group)
    found = problems(group)
    assert found.keys() == {name}
    assert reason in found[name]
    assert "careless 1.0" in found[name]
    assert OWN[group] in usable(offers(group))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("line", ["no equals sign", "t = \udcff:x"])
def test_a_file_that_cannot_be_read_hides_no_other_package(
    group: str, line: str, install: Install
) -> None:
    install("broken", line, group=group)
    install("whole", f"toy = {FACTORY}", group=group)
    assert {"toy", OWN[group]} <= usable(offers(group)).keys()
    (reason,) = problems(group).values()
    assert "entry_points.txt cannot be read" in reason or "is not of the form" in reason


def test_commands_list_and_refuse_what_is_bad(install: Install, tmp_path: Path) -> None:
    install("careless", "toy = no such thing")
    listed = here("targets", "list", cwd=tmp_path)
    assert listed.code == 0
    assert "not usable: 'no such thing' is not of the form" in " ".join(listed.out.split())
    opened = here("run", "--target", "toy", cwd=tmp_path)
    assert opened.code == 2
    assert "is not of the form package.module:function" in opened.err


def test_a_sweep_lists_a_bad_provider(install: Install, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra gpu is not installed")
    install("careless", "toy = no such thing", group=kernels.GROUP)
    listed = here("sweep", "--list", "--device", "cpu", cwd=tmp_path)
    assert listed.code == 0, listed.err
    assert "not usable: 'no such thing' is not" in " ".join(listed.out.split())


def test_every_group_of_entry_points_is_read_by_the_check_of_owners() -> None:
    """Plugins of pytest and vLLM are offered by kvproof, and read by them alone."""
    calls = {
        named(path): re.findall(r"\bentry_points\(([^)]*)\)", path.read_text(encoding="utf-8"))
        for path in PRODUCT
    }
    command = 'group="console_scripts", name="kvproof"'
    found = {name: texts for name, texts in calls.items() if set(texts) - {command}}
    assert found == {"kernels/entry_points.py": ["group=group"]}


@pytest.mark.parametrize("lines", ["[kvproof.targets]\nmine\n", "[hypothesis]\nx = nowhere:x\n"])
def test_what_a_package_offers_to_others_ends_no_command(tmp_path: Path, lines: str) -> None:
    """Hypothesis reads the entry points of all packages when it is imported."""
    (info := tmp_path / "evil-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(lines)
    done = kvproof("explain", str(LOG), cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.code, done.err) == (0, "")
