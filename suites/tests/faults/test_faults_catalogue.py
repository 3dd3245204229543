"""The catalogue of faults: each fits the code in one place, and names what it is modelled on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.kernels.registry import provider_names
from kvproof.suites.faults.catalogue import (
    KERNELS,
    chosen,
    engines,
    everything,
    find,
    in_engine,
    load,
    of_suite,
    shadowed,
)
from kvproof.suites.faults.planters import AtImport
from kvproof.suites.faults.planting import Unfit, changed, origin, plant
from kvproof.suites.framework.rooms import rooms
from kvproof.suites.runner.levels import catalogue
from kvproof.suites.tests.documents import recorded

FAULTS = load()
PROPERTIES = {suite: {p.name: p for p in found} for suite, found in catalogue("full").items()}
BUGS = {bug.name for room in rooms() for bug in room.bugs}


def test_there_are_enough_of_many_kinds():
    assert len(FAULTS) >= 60
    assert len({fault.mechanism for fault in FAULTS.values()}) >= 12
    kinds = Counter(fault.kind for fault in FAULTS.values())
    assert min(kinds.values()) >= 10, kinds
    assert set(kinds) == {"soundness", "hits", "accounting", "component"}


def test_each_layer_of_an_engine_has_faults_and_most_are_found():
    targets = {fault.target for fault in engines().values()}
    assert targets >= {"vllm==0.33.0", "vllm-engine==0.33.0", "lmcache==0.5.6"}
    run = [fault for fault in engines().values() if not fault.equivalent]
    assert sum(not fault.survives for fault in run) >= 0.95 * len(run)


def test_the_old_text_occurs_once_and_the_new_one_compiles():
    for fault in (each for each in everything().values() if not in_engine(each)):
        path = origin(fault.module)
        compile(changed(fault, path.read_text()), fault.name, "exec")


def test_the_new_text_uses_names_that_its_module_has(tmp_path: Path):
    """Or the fault is a crash, which other properties find first."""
    missing = set[tuple[str, str]]()
    for name, fault in FAULTS.items():
        source = origin(fault.module).read_text()
        tmp_path.joinpath(f"{name}.py").write_text(changed(fault, source))
        used = set(re.findall(r"\bself\.(\w+)", fault.new)) - {"__dict__"}
        written = set(re.findall(r"\bself\.(\w+) = ", fault.new))
        known = set(re.findall(r"\b\w+\b", source)) | written
        missing |= {(name, attribute) for attribute in used - known}
    undefined = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=F821"]
    found = subprocess.run(
        [*undefined, "--output-format=concise", tmp_path],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert not missing
    assert found.returncode == 0, found.stdout


def test_it_is_modelled_on_bugs_that_are_known():
    assert {bug for fault in FAULTS.values() for bug in fault.bugs} <= BUGS


def test_the_property_that_finds_it_exists():
    named = [each for each in everything().values() if each.property and each.suite != KERNELS]
    assert [each.name for each in named if each.property not in PROPERTIES[each.suite]] == []


def test_verdicts_are_of_faults_that_are_run():
    faults = everything()
    assert recorded.load().keys() <= {name for name in faults if not faults[name].equivalent}
    survivors = [each.fault for each in recorded.load().values() if not each.by]
    assert [name for name in survivors if not faults[name].survives] == []


def test_the_same_change_stands_in_it_once():
    faults = (*FAULTS.values(), *engines().values())
    changes = Counter((each.target, each.module, each.old, each.new) for each in faults)
    assert changes.most_common(1)[0][1] == 1


def test_soundness_is_seen_by_a_shadow_memory_unless_there_is_a_reason():
    exempt = [fault for fault in FAULTS.values() if fault.kind == "soundness" and fault.unshadowed]
    assert sum(map(shadowed, FAULTS.values())) >= 20
    assert all(len(fault.unshadowed) > 20 for fault in exempt)


def test_a_text_that_is_not_there_or_there_twice_does_not_fit():
    fault = find("namespace_ignored")
    source = origin(fault.module).read_text()
    with pytest.raises(Unfit, match=r"occurs 0 times in reference\.cache\.request_state, not once"):
        changed(fault, source.replace(fault.old, ""))
    with pytest.raises(Unfit, match="occurs 2 times"):
        changed(fault, source + source)


def test_a_module_that_was_imported_before_is_not_changed_any_more():
    import kvproof.reference.cache.request_state  # noqa: F401 - planting has to notice

    with pytest.raises(Unfit, match="imported before"):
        plant(find("namespace_ignored"))


def test_names_and_mechanisms_are_chosen_by_globs():
    assert [fault.name for fault in chosen("stale_epoch")] == ["stale_epoch"]
    assert {fault.mechanism for fault in chosen("tiers,kernel*")} >= {"tiers", "kernel blocks"}
    assert len(chosen("")) == len(FAULTS)
    with pytest.raises(UsageError, match="no fault matches --only 'nothing'"):
        chosen("nothing")
    with pytest.raises(UsageError, match="there is no fault 'stale_epohc'") as refused:
        find("stale_epohc")
    assert refused.value.hint == "did you mean 'stale_epoch'?"


def test_every_suite_with_faults_is_one_that_runs():
    suites = {fault.suite for fault in FAULTS.values()}
    assert suites <= {*PROPERTIES, KERNELS}
    assert all(of_suite(suite) for suite in suites)
    assert "kvproof" in provider_names()


@pytest.mark.parametrize("target", sorted({fault.target for fault in FAULTS.values()}))
def test_a_fault_is_judged_in_the_process_that_has_it(target: str, monkeypatch):
    """The worker of a target of one's own would import the module without the fault."""
    monkeypatch.setattr("kvproof.suites.faults.planters.plant", lambda _: None)
    one = next(fault for fault in FAULTS.values() if fault.target == target)
    with AtImport().planted(one) as handle:
        assert isinstance(handle, InProcessHandle)
