"""The world of one attack: a folder with valid files of every kind, and a command of every verb."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from kvproof.suites.tests.attack.line import Option, Verb
from kvproof.suites.tests.attack.processes import MARK, Command
from kvproof.suites.tests.attack.values import SECRET

ROOT = Path(__file__).parents[3]
SETTINGS = """\
[run]
targets = ["reference"]
budget = "debug"

[gate]
level = "core"
bench = true
requests = 4
sweep = false
baseline = "baseline.json"
max_regression = 0.25

[[gate.threshold]]
target = "reference"
block_size = 16
metric = "index_bytes_per_block"
min = 0.0
max = 1e6

[compare]
alpha = 0.05
baselines = "baselines"

[compare.threshold]
cpu_per_token = 0.05

[campaign]
database = "examples"
histories = 20
"""
EVAL = """\
model = "symbolic"

[protocol]
max_tokens = 8
temperature = 0.0
timeout = 5.0
retries = 0

[judge]
alpha = 0.05
min_cached = 0.4

[server]
launch = ["{kvproof}", "serve", "--model", "symbolic", "--port", "{port}", "--num-blocks", "4097"]
ready_within = 30.0

[[configuration]]
name = "off"
prefix_cache = false
arguments = ["--no-enable-prefix-caching"]

[[configuration]]
name = "off again"
control = true

[[configuration]]
name = "on"
"""
DEAD = "http://127.0.0.1:9/v1"
BENCH = "--no-growth --repetitions 1 --block-size 16 --case no_eviction --output"


class Base(NamedTuple):
    """A valid command of a verb, quick where that is possible."""

    arguments: tuple[str, ...] = ()
    """Positional ones."""
    options: Mapping[str, str] = MappingProxyType({})
    """Option -> its value; none for flags."""
    end: tuple[str, ...] = ()


def typed(line: str, *arguments: str, end: tuple[str, ...] = ()) -> Base:
    """Return a command whose options are written out."""
    options = dict[str, str]()
    name = ""
    for word in line.split():
        if word.startswith("--"):
            name = word
            options[name] = ""
        else:
            options[name] = f"{options[name]} {word}".strip()
    return Base(arguments, options, end)


OUT = "--output record"
BASES = {
    "run": typed(f"--target reference --budget debug {OUT}"),
    "fuzz": typed(f"--target reference --max-time 1s --units 1 --config settings.toml {OUT}"),
    "replay": typed(OUT, "log.json"),
    "gate": typed(f"--config settings.toml {OUT}"),
    "faults": typed(f"--only nothing_of_that_name {OUT}"),
    "bench": typed(f"--workload trace.jsonl {BENCH} record"),
    "sweep": typed(
        "--kernels state_copy --providers torch --cells cpu --device cpu --workers 1 --no-timing "
        f"--filter layers=1 {OUT}"
    ),
    "eval longbench-v2": typed(f"--config eval.toml --data data.json --url all={DEAD} {OUT}"),
    "eval scbench": typed(f"--config eval.toml --data . --url all={DEAD} {OUT}"),
    "eval compare": typed(OUT, "eval", "eval"),
    "eval generate": typed("--samples 2 --max-tokens 2000", "generated"),
    "probe": typed(f"--max-time 2s --timeout 1s {OUT}", DEAD),
    "record": typed(OUT, end=("--", "true")),
    "explain": typed("", "log.json"),
    "compare": typed(OUT, "bench-a", "bench-b"),
    "baseline save": typed("--name main --config settings.toml", "bench-a"),
    "merge": typed(OUT, "run-a", "run-b"),
    "report": typed("", "run-a"),
    "history": typed("--output history.html", "."),
    "plan": typed(f"--model-config model.json --memory 64GiB {OUT}"),
    "serve": typed("--model symbolic --port 0 --num-blocks 65 --block-size 4"),
    "cache-server": typed("--memory 1MiB --address ipc://{tmp}/s.sock"),
    "cache-server status": typed("--address ipc://{tmp}/none.sock --timeout 0.2"),
    "new-target": typed("", "record"),
    "targets install": typed("", "vllm==0.0.1"),
    "targets remove": typed("", "vllm==0.33.0"),
    "targets show": typed("", "reference"),
}
"""Verb -> command; a verb that is not here gets its required options by their type."""
BUILT = (
    f"bench --workload trace.jsonl {BENCH} bench-a",
    f"bench --workload trace.jsonl {BENCH} bench-b",
    "replay log.json --output run-a",
    "replay log.json --output run-b",
    "sweep --kernels state_copy --providers torch --cells cpu --device cpu --workers 1 --no-timing "
    "--filter layers=1 --output sweep",
    "plan --model-config model.json --memory 64GiB --output planned",
    "gate --config settings.toml --save-baseline --output gate",
    "eval generate generated --samples 2 --max-tokens 2000",
)
"""Commands that make the valid records."""


def base(verb: Verb) -> Base:
    """Return a valid command of a verb."""
    if verb.name in BASES:
        return BASES[verb.name]
    needed = [each for each in verb.options if each.required]
    return Base(
        tuple(_plain(each) for each in needed if each.positional),
        {each.name: _plain(each) for each in needed if not each.positional},
    )


def _plain(option: Option) -> str:
    if option.choices:
        return option.choices[0]
    return "log.json" if option.is_path else "1"


def words(verb: Verb, given: Base, folder: Path) -> tuple[str, ...]:
    """Write a command out."""
    found = [*verb.words]
    for name, value in given.options.items():
        found.append(name)
        found += value.replace("{tmp}", str(folder / "tmp")).split() if value else ()
    return (*found, *given.arguments, *given.end)


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Variables of an attacked process: no network, no credentials but the planted ones."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_RUNTIME_DIR": str(folder / "tmp"),
        "KVPROOF_HOME": str(folder / "home" / "kvproof"),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "no_proxy": "127.0.0.1,localhost",
        "PIP_INDEX_URL": nowhere,
        "UV_INDEX_URL": nowhere,
        "UV_OFFLINE": "1",
        "KVPROOF_API_KEY": SECRET,
        "KVPROOF_PROBE_KEY": SECRET,
        "KVPROOF_REMOTE_PASSWORD": SECRET,
        MARK: mark,
    }


class Worlds:
    """Folders of attacks below one scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.chmod(0o711)
        self.template = scratch / "template"
        self._plain_files()

    def _plain_files(self) -> None:
        for name in ("cwd/folder", "home", "tmp"):
            (self.template / name).mkdir(parents=True)
        cwd = self.template / "cwd"
        corpus = ROOT / "suites" / "corpus"
        (cwd / "log.json").write_bytes(
            (corpus / "split_node_gives_back_whole_table.json").read_bytes()
        )
        configs = ROOT / "suites" / "tests" / "planner" / "model_configs"
        shutil.copytree(configs, cwd / "models")
        (cwd / "model.json").write_bytes((configs / "llama_3_1_8b.json").read_bytes())
        (cwd / "settings.toml").write_text(SETTINGS)
        (cwd / "eval.toml").write_text(EVAL)
        (cwd / "file.txt").write_text("a file\n")
        (cwd / "token").write_text(f"{SECRET}\n")
        (cwd / "token").chmod(0o600)
        rows = [
            {
                "timestamp": 10 * i,
                "input_length": 48,
                "output_length": 1,
                "hash_ids": [1, 2, 3 + i],
            }
            for i in range(4)
        ]
        trace = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (cwd / "trace.jsonl").write_bytes(trace)
        (cwd / "trace.jsonl.gz").write_bytes(gzip.compress(trace))
        (cwd / "dangling").symlink_to("nowhere")
        (cwd / "loop").symlink_to("loop")
        (cwd / "unreadable").mkdir()
        (cwd / "unreadable" / "below").write_text("")

    def built(self, name: str, result: Path) -> None:
        """Take what a command has made into the template."""
        for each in ("data.json", "shared.json"):
            if (result / "generated" / each).exists():
                shutil.copy(result / "generated" / each, self.template / "cwd" / each)
        for each in (name, "baseline.json"):
            if (result / each).is_dir():
                shutil.copytree(result / each, self.template / "cwd" / each, dirs_exist_ok=True)
            elif (result / each).exists():
                shutil.copy(result / each, self.template / "cwd" / each)
        if (result / "planned" / "plan.json").exists():
            shutil.copy(result / "planned" / "plan.json", self.template / "cwd" / "plan.json")

    @contextmanager
    def world(self) -> Iterator[Path]:
        """Make a folder for one attack, and remove it."""
        folder = Path(tempfile.mkdtemp(prefix="world-", dir=self.scratch))
        try:
            shutil.copytree(self.template, folder, symlinks=True, dirs_exist_ok=True)
            yield folder
        finally:
            (folder / "cwd" / "unreadable").chmod(0o700)
            shutil.rmtree(folder, ignore_errors=True)


def close_off(folder: Path) -> None:
    """Take the permissions from the part of a world that must not be read."""
    (folder / "cwd" / "unreadable").chmod(0o000)


def command(verb: Verb, given: Base, folder: Path, **more: object) -> Command:
    """Return the command of an attack in its world."""
    return Command(words(verb, given, folder), folder, environment(folder, folder.name), **more)


def pick(random: Random, verbs: tuple[Verb, ...], *names: str) -> Verb:
    """Choose a verb, of these names if there are any."""
    return random.choice([each for each in verbs if not names or each.name in names])
