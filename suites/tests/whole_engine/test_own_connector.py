"""A connector class of a user's own under vLLM's loop: names, options, and bugs that are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvproof.harness.cli.app import main
from kvproof.harness.contract.whole_engine_traits import Tier, WholeEngineTraits
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.chosen import is_engine
from kvproof.harness.isolation.connected import divided, options_of, with_connector
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets, check_names, open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.settings import load_settings
from kvproof.suites.framework.component_suite import run
from kvproof.suites.runner.registry import on
from kvproof.suites.runner.replay import expected_of
from kvproof.suites.whole_engine.strategies import LoopHistories

TARGET = "vllm-engine==0.33.0"
CONNECTOR = "my_connector:MyConnector"
EXAMPLES = Path(__file__).parents[3] / "examples"
CODE = (EXAMPLES / "my_connector.py").read_text()


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (f"{TARGET}+{CONNECTOR}", (TARGET, CONNECTOR)),
        ("vllm-engine+a.b:C", ("vllm-engine", "a.b:C")),
        ("vllm==0.33.0+cpu", ("vllm==0.33.0+cpu", "")),
        ("my_engine:make_target", ("my_engine:make_target", "")),
    ],
)
def test_a_connector_is_part_of_the_targets_name(target: str, parts: tuple[str, str]) -> None:
    assert divided(target) == parts


def test_a_connector_is_for_engines_that_run_one() -> None:
    assert with_connector(["reference", TARGET], CONNECTOR) == [
        "reference",
        f"{TARGET}+{CONNECTOR}",
    ]
    assert with_connector([TARGET], "") == [TARGET]
    assert with_connector([TARGET], "", usual="a:B") == [f"{TARGET}+a:B"]
    assert with_connector(["reference"], "", usual=CONNECTOR) == ["reference"]
    with pytest.raises(UsageError, match="is for vllm-engine, not for reference"):
        with_connector(["reference"], CONNECTOR)
    check_names([f"{TARGET}+{CONNECTOR}"])
    assert is_engine(f"vllm-engine+{CONNECTOR}")  # --python takes it
    with pytest.raises(UsageError, match="not of the form package"):
        check_names([f"{TARGET}+1a:C"])


def test_options_are_json_or_text() -> None:
    assert options_of(
        [
            "size=3",
            "path={folder}/a",
            'names=["a"]',
            "late=true",
            "empty=",
            "much=1e999",
            f"deep={'[' * 9999}",
        ]
    ) == {
        "size": 3,
        "path": "{folder}/a",
        "names": ["a"],
        "late": True,
        "empty": "",
        "much": "1e999",
        "deep": "[" * 9999,
    }
    with pytest.raises(UsageError, match="'size' is not of the form key=value"):
        options_of(["size"])
    with pytest.raises(UsageError, match="is not UTF-8"):
        options_of(["size=\udc80"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", TARGET, "--connector", "my_connector"], "package.module:Class"),
        (["--target", "reference", "--connector", CONNECTOR], "is for vllm-engine"),
        (["--target", "reference", "--connector-option", "size"], "key=value"),
    ],
)
def test_a_wrong_name_or_option_is_a_wrong_use(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == Exit.USAGE
    said = capsys.readouterr().err
    assert words in " ".join(said.split())
    assert "Traceback" not in said


def test_the_settings_file_names_connector_and_options(tmp_path: Path) -> None:
    file = tmp_path / "kvproof.toml"
    file.write_text(
        f'[run]\ntargets = ["{TARGET}"]\nconnector = "{CONNECTOR}"\n'
        "[run.connector_options]\nblocks = 9\n"
    )
    found = load_settings(file).run
    assert (found.connector, found.connector_options) == (CONNECTOR, {"blocks": 9})


class _Profile(NamedTuple):
    engine: str
    version: str
    unsupported: dict[str, str]


def _handle(name: str) -> Any:
    profile = _Profile("vllm-engine", "0.33.0", {})
    return SimpleNamespace(name=name, profile=profile, known_failures="")


def test_known_failures_of_other_connectors_are_not_demanded() -> None:
    assert any(each.history for each in expected_of(_handle(TARGET)))
    own = expected_of(_handle(f"{TARGET}+{CONNECTOR}"))
    assert own  # they are recognised
    assert not any(each.history for each in own)


def test_known_failures_of_the_engine_are_told_from_those_of_its_connectors() -> None:
    found = {each.mechanism: each.of_engine for each in expected_of(_handle(TARGET))}
    assert found["preempted_in_its_own_step_stays_cached"]
    assert found["failed_load_hides_those_behind"]
    assert not found["second_reset_asserts"]  # OffloadingConnector
    assert not found["idle_engine_stores_for_ever"]  # SimpleCPUOffloadConnector
    assert not found["lmcache_table_grows_twice"]  # LMCache's


def test_every_engine_has_the_connector_with_its_options() -> None:
    tier = Tier(name=CONNECTOR, given={"blocks": 9}, settings={"policy": ("b",)})
    drawn = LoopHistories(WholeEngineTraits(tiers=(tier,), without_tier=0))
    engines = [drawn.config(drawn.choices(seed), seed).config["engine"] for seed in range(20)]
    assert {each["connector"] for each in engines} == {CONNECTOR}
    assert {json.dumps(each["tier"], sort_keys=True) for each in engines} == {
        '{"blocks": 9}',
        '{"blocks": 9, "policy": "b"}',
    }


History = list[tuple[str, dict[str, Any]]]


class Bug(NamedTuple):
    """A change of the example, a history that shows it, and the property that fails."""

    right: str
    wrong: str
    history: History
    property: str


def _submit(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "submit", {"id": name, "family": 0, "shared": 80, "own": 1, "answers": 1, **more}


DRAIN: History = [("drain", {})]
FIRST = [_submit("a"), *DRAIN]
OTHERS = [_submit("other", family=1, shared=110), *DRAIN]
"""A prompt for which the pool gives all its blocks."""
BUGS = {
    "content of before a reset": Bug(
        "        STORE.clear()\n",
        "",
        [*FIRST, ("reset", {}), _submit("b"), *DRAIN],
        "no_hit_across_epochs",
    ),
    "loads go to the first blocks": Bug(
        "blocks.get_block_ids()[0][first:last]",
        "blocks.get_block_ids()[0][: last - first]",
        [*FIRST, _submit("other", family=1, shared=60), *DRAIN, _submit("b"), *DRAIN],
        "reads_return_own_content",
    ),
    "a load is reported a step too early": Bug(
        "        self._load(self._under_way)\n",
        "        self._load(getattr(self, '_late', ()))\n        self._late = self._under_way\n",
        [*FIRST, *OTHERS, _submit("b"), *DRAIN],
        "reads_return_own_content",
    ),
    "keys without salts": Bug(
        "return list(request.block_hashes)",
        "return [hash(tuple(request.all_token_ids[: at * self._size + self._size]))"
        " for at in range(request.num_tokens // self._size)]",
        [*FIRST, _submit("b", salt="s"), *DRAIN],
        "namespaces_are_separate",
    ),
    "a part of a load that failed is not reported": Bug(
        "self._errors.add(block)",
        "pass",
        [*FIRST, *OTHERS, _submit("b"), ("step", {"count": 9, "lose": 3}), *DRAIN],
        "reads_return_own_content",
    ),
    "an exception in a hook": Bug(
        "copies, self._next = self._next, Copies()",
        "copies, self._next = self._nothing, Copies()",
        FIRST,
        "the_engine_keeps_running",
    ),
    "an exception in the constructor": Bug(
        "self._errors: set[int] = set()",
        "raise ValueError('no store')",
        FIRST,
        "the_engine_keeps_running",
    ),
    "a hook that takes other arguments": Bug(
        "def wait_for_layer_load(self, layer_name: str)",
        "def wait_for_layer_load(self)",
        FIRST,
        "the_engine_keeps_running",
    ),
}
CONFIG = {"blocks": 9, "block_size": 16, "max_length": 128}
CONNECT = "kvproof.harness.adapters.vllm_engine.jobs:connect"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example, and a copy with each bug."""
    made = tmp_path_factory.mktemp("connectors")
    shutil.copy(EXAMPLES / "my_connector.py", made)
    for number, bug in enumerate(BUGS.values()):
        assert CODE.count(bug.right) == 1, "the example has the line once"
        (made / f"bug_{number}.py").write_text(CODE.replace(bug.right, bug.wrong))
    return made


@pytest.fixture(scope="module")
def handle(folder: Path) -> Iterator[Handle]:
    engine = EngineVersion("vllm-engine", "0.33.0")
    if environments.state(engine) != "installed":
        pytest.skip(f"kvproof targets install {engine}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = OwnTargets(connector_options=("asynchronous=true",))
        with open_handle(f"{engine}+{CONNECTOR}", options=options) as opened:
            yield opened


def connect(handle: Handle, connector: str, **options: Any) -> dict[str, str]:
    given = {"connector": connector, "options": options, "path": []}
    found: dict[str, str] = handle.run_job(CONNECT, given, timeout=60)
    return found


def play(handle: Handle, module: str, history: History) -> Any:
    options = {"asynchronous": True, "kv_load_failure_policy": "recompute"}
    connector = f"{module}:MyConnector"
    assert connect(handle, connector, **options) == {"problem": "", "hint": ""}
    engine = {**CONFIG, "connector": connector, "tier": options}
    return run(on("engine", handle), {"engine": engine}, history)


slow = pytest.mark.slow(reason="vLLM is imported once, 6 s; a history takes 0.1 s")


@slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_a_connector_fails_and_the_example_passes(handle: Handle, name: str) -> None:
    bug, number = BUGS[name], list(BUGS).index(name)
    play(handle, "my_connector", bug.history)
    with pytest.raises(Violation) as failed:
        play(handle, f"bug_{number}", bug.history)
    assert failed.value.property == bug.property
    if bug.property == "the_engine_keeps_running":
        assert f"bug_{number}.py" in str(failed.value) or "wait_for_layer_load" in str(failed.value)


@slow
def test_the_example_loads_and_stores_real_content(handle: Handle) -> None:
    seen = play(handle, "my_connector", BUGS["a load is reported a step too early"].history)
    assert seen.coverage.situations["blocks are stored in another tier"] >= 5
    assert seen.coverage.situations["blocks are loaded from another tier"] >= 5


@slow
@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (CONNECTOR, "is not configured: "),
        ("my_conector:MyConnector", "No module named 'my_conector'"),
        ("my_connector:MyConector", "has no attribute 'MyConector'"),
        ("my_connector:Copies", "is no class derived from KVConnectorBase_V1"),
        ("unfinished:Unfinished", "does not define build_connector_meta, get_num_new"),
        ("broken:C", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_a_class_is_said_plainly(
    handle: Handle, folder: Path, connector: str, words: str
) -> None:
    (folder / "broken.py").write_text("C = 1 // 0\n")
    base = "vllm.distributed.kv_transfer.kv_connector.v1.base"
    (folder / "unfinished.py").write_text(
        f"from {base} import KVConnectorBase_V1\nclass Unfinished(KVConnectorBase_V1): ...\n"
    )
    found = connect(handle, connector, kv_role="none")
    assert words in found["problem"]
    assert found["hint"]
