"""Every finding has a page and a script, and where its engine is installed the script shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from kvproof.harness import adapters
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.reproduce import oplog
from kvproof.suites.runner.replay import property_of, replay

FOLDER = Path(__file__).parents[2] / "engines"
INDEX = Path(__file__).parents[3] / "docs" / "findings.md"
FINDINGS = {
    "lmdeploy/refused_admission_evicts": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/clamped_suffix_is_not_cached": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/private_copy_pins_its_original": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/full_pool_saves_no_state_inside_a_block": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/hit_inside_a_block_ends_caching": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/lru_in_whole_seconds": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/decode_reads_behind_the_last_token": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/second_turn_shifts_its_table": EngineVersion("lmdeploy", "0.18.0"),
    "lmdeploy/waiting_turn_gives_its_blocks_up": EngineVersion("lmdeploy", "0.18.0"),
    "sglang/extra_key_is_an_adapter": EngineVersion("sglang", "0.5.23"),
    "sglang/state_of_another_length": EngineVersion("sglang", "0.5.23"),
    "sglang/refused_admission_evicts": EngineVersion("sglang", "0.5.23"),
    "sglang/backups_lock_all_states": EngineVersion("sglang", "0.5.23"),
    "sglang/selective_counts_no_full_hit": EngineVersion("sglang", "0.5.23"),
    "vllm/chunk_across_blocks": EngineVersion("vllm", "0.33.0"),
    "vllm/windows_count_as_drafts": EngineVersion("vllm", "0.33.0"),
    "vllm/decoded_behind_embeddings_is_no_prompt": EngineVersion("vllm", "0.33.0"),
    "vllm/cleared_event_names_no_tier": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/second_reset_asserts": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/failed_load_stays_cached": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/answer_of_a_failed_load_is_taken": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/failed_load_runs_for_ever": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/idle_engine_stores_for_ever": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/blocks_are_read_after_their_lease": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/failed_load_hides_those_behind": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/pushed_blocks_never_come": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/aborted_push_is_remembered": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/unequal_blocks_shift_a_hit": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/window_of_a_loaded_prompt_is_one_short": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/push_into_smaller_blocks_ends_the_engine": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/taken_port_hangs_the_start": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/left_out_request_loses_its_state": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/row_takes_the_count_of_another": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/preempted_in_its_own_step_stays_cached": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/completion_reported_twice_raises": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/repeated_message_counts_for_another_worker": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/example_connector_loads_what_it_has_not_kept": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/store_serves_other_salts_and_weights": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/lmcache_table_grows_twice": EngineVersion("vllm-engine", "0.33.0"),
    "vllm/lmcache_unread_hit_ends_the_engine": EngineVersion("vllm-engine", "0.33.0"),
    "lmcache/partly_null_chunk_is_served": EngineVersion("lmcache", "0.5.6"),
    "lmcache/left_window_in_a_shared_object": EngineVersion("lmcache", "0.5.6"),
    "lmcache/retrieve_writes_the_null_block": EngineVersion("lmcache", "0.5.6"),
    "lmcache/types_share_keys": EngineVersion("lmcache", "0.5.6"),
    "lmcache/skip_is_rounded_down": EngineVersion("lmcache", "0.5.6"),
    "lmcache/refused_retrieve_keeps_locks": EngineVersion("lmcache", "0.5.6"),
    "lmcache/failed_store_blocks_its_content": EngineVersion("lmcache", "0.5.6"),
    "lmcache/indexer_objects_differ": EngineVersion("lmcache", "0.5.6"),
    "lmcache/interleaved_groups_are_never_stored": EngineVersion("lmcache", "0.5.6"),
    "lmcache/small_window_takes_a_chunk": EngineVersion("lmcache", "0.5.6"),
    "lmcache/left_pages_stay_mapped": EngineVersion("lmcache", "0.5.6"),
    "transformers/oversized_prompt_stops_the_loop": EngineVersion("transformers", "5.23.0"),
}


def skip_without(engine: EngineVersion) -> None:
    if environments.state(engine) != "installed":
        pytest.skip(f"{engine} is not installed: kvproof targets install {engine}")


def skip_without_lmcache(name: str, engine: EngineVersion) -> None:
    if "/lmcache_" in name and not list(engine.directory.glob("lib/python*/site-packages/lmcache")):
        pytest.skip("LMCache is not there beside vLLM: harness/locks/more")


def test_the_list_is_complete() -> None:
    found = {f"{path.parts[-4]}/{path.parts[-2]}" for path in FOLDER.glob("*/findings/*/README.md")}
    assert found == FINDINGS.keys()


def place(name: str) -> Path:
    engine, _, finding = name.partition("/")
    return FOLDER / engine / "findings" / finding


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_is_described_and_listed(name: str) -> None:
    page = (place(name) / "README.md").read_text()
    assert page.startswith("# ")
    assert all(f"| {word} |" in page for word in ("engine", "judged as", "where", "upstream"))
    engine, _, finding = name.partition("/")
    assert f"/{engine}/findings/{finding}/README.md)" in INDEX.read_text()


def named(file: Path) -> str:
    return f"{file.parts[-4]}/{file.parts[-2]}"


HISTORIES = sorted(FOLDER.glob("*/findings/*/history.json"))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[EngineVersion], Handle]]:
    """Each engine is started once."""
    with ExitStack() as stack:

        @cache
        def handle(engine: EngineVersion) -> Handle:
            logs = tmp_path_factory.mktemp("logs")
            return stack.enter_context(open_handle(str(engine), log_directory=logs))

        yield handle


@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize(
    "history", HISTORIES, ids=lambda path: f"{path.parts[-4]}/{path.parts[-2]}"
)
def test_a_history_breaks_the_property_of_its_page(
    history: Path, opened: Callable[[EngineVersion], Handle]
) -> None:
    log = oplog.load(history)
    page = (history.parent / "README.md").read_text()
    assert f"`{log.property}`" in page
    assert "`history.json`" in page
    name = named(history)
    skip_without(FINDINGS[name])
    skip_without_lmcache(name, FINDINGS[name])
    again = replay(opened(FINDINGS[name]), history)
    assert (again.outcome, property_of(again)) == ("FAILED", log.property), again.message


SCRIPTS = sorted(FOLDER.glob("*/findings/**/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_nothing_of_kvproof_is_used(script: Path) -> None:
    imported = re.findall(r"^\s*(?:import|from)\s+(\w+)", script.read_text(), re.MULTILINE)
    assert imported
    assert "kvproof" not in imported


KERNELS = "lmdeploy/decode_reads_behind_the_last_token"
"""Needs Triton, which environments leave out: it runs in this interpreter."""


@pytest.mark.slow(reason="runs an installed engine")
@pytest.mark.parametrize(("name", "engine"), FINDINGS.items())
def test_its_script_shows_it(name: str, engine: EngineVersion, tmp_path: Path) -> None:
    script = place(name) / "script.py"
    skip_without(engine)
    skip_without_lmcache(name, engine)
    if name == KERNELS:
        pytest.importorskip("triton", reason="the script runs a Triton kernel")
        python, more = with_packages(engine, tmp_path), {"PYTHONPATH": str(tmp_path)}
    else:
        python, more = engine.python, {}
    stubs = [Path(next(iter(adapters.__path__))) / "sglang" / "stubs.py"]
    done = subprocess.run(
        [python, "-W", "ignore", script, *(stubs if engine.engine == "sglang" else [])],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **more},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def with_packages(engine: EngineVersion, folder: Path) -> Path:
    """Link what this interpreter lacks from the engine's environment; returns the interpreter."""
    there = next(engine.directory.glob("lib/python*/site-packages"))
    for name in ("lmdeploy", "pydantic", "pydantic_core", "annotated_types", "typing_inspection",
                 "psutil"):  # fmt: skip
        (folder / name).symlink_to(there / name)
    return Path(sys.executable)
