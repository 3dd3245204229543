"""Steps of one token through the kernel that reads pages, beside what transformers attends to."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from kvproof.suites.tests.models.model_kit import text, torch

from kvproof.kernels.dispatch import ExpandedTable  # isort: skip
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch  # isort: skip
from kvproof.reference.core.cache_config import ConfigError  # isort: skip
from kvproof.reference.engine.engine import Engine  # isort: skip
from kvproof.reference.engine.engine_config import EngineConfig  # isort: skip
from kvproof.reference.model_runner import paged_attention  # isort: skip
from kvproof.reference.model_runner.cache import PagedLayer  # isort: skip
from kvproof.reference.model_runner.runner import HuggingFaceModel, cache_config  # isort: skip
from kvproof.reference.model_runner.specs import UnsupportedModel  # isort: skip
from kvproof.suites.tests.fast_share import one_in  # isort: skip
from kvproof.suites.tests.lab.parity.tiny_models import build  # isort: skip

FAMILIES = ("qwen3", "gpt_oss", "gemma3", "gemma4", "qwen3_next", "falcon_h1", "qwen3_vl")
"""Full; sinks, windows; windows; unequal heads; states between; states beside; 3 positions."""
PROMPTS = tuple(text(count, seed=count) for count in (5, 33, 70))
NEW = 20
CLOSE = 0.05
"""Of the largest logit: what rounding to 16 bits in another order may do to a random model."""
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
make = cache(build)


def serve(model, *, attention, mode="batched", kernel_block_size=4, graphs=True):
    """Return answers, logits by request, and the runner."""
    config = cache_config(
        model, num_blocks=200, block_size=16, kernel_block_size=kernel_block_size,
        local_block_size=8,
    )  # fmt: skip
    logits = {}

    def keep(name, start, values):
        logits.setdefault(name, []).append(values)

    runner = HuggingFaceModel(model, config, mode=mode, attention=attention, on_logits=keep)
    runner.forward.graphs &= graphs
    engine = Engine(EngineConfig(config, 64, poison_freed=True), runner)
    answers = engine.generate(PROMPTS, max_new_tokens=NEW)
    return answers, {name: torch.cat(parts).double() for name, parts in logits.items()}, runner


@pytest.fixture
def precise(monkeypatch):
    """Take entries of any type, and compute in float64: what is left is which entries are read."""

    def attend(*tensors, **more):
        paged_decode_torch(*tensors, **more, compute=torch.float64)

    monkeypatch.setattr(paged_attention, "DTYPES", (torch.float32,))
    monkeypatch.setattr(paged_attention, "paged_decode", attend)


@pytest.mark.parametrize(
    "served",
    one_in(
        0,
        [(family, mode) for family in FAMILIES for mode in ("exact", "batched")],
        reason="runs kernels in Triton's interpreter",
    ),
    ids="-".join,
)
@pytest.mark.usefixtures("precise")
def test_the_kernel_reads_what_the_model_would_attend_to(served):
    """K4: kernel blocks are smaller than blocks, and what nobody wrote is no number."""
    family, mode = served
    model = make(family)
    gathered, right, _ = serve(model, attention="gather", mode=mode)
    answers, ours, runner = serve(model, attention="paged", mode=mode)
    assert answers == gathered
    assert runner.forward.paged_rows >= len(PROMPTS) * (NEW - 1)
    for name, expected in right.items():
        assert (ours[name] - expected).abs().max() < 1e-3


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@pytest.mark.parametrize("kernel_block_size", [16, 8, 2, 1])
@pytest.mark.usefixtures("precise")
def test_the_size_of_kernel_blocks_changes_nothing(kernel_block_size):
    model = make("gpt_oss")
    _, right, _ = serve(model, attention="paged")
    _, ours, _ = serve(model, attention="paged", kernel_block_size=kernel_block_size)
    for name, expected in right.items():
        assert torch.equal(ours[name], expected)


@pytest.mark.usefixtures("precise")
def test_a_table_that_is_not_expanded_is_seen(monkeypatch):
    """K4 broken: the kernel is handed blocks for kernel blocks."""
    model = make("qwen3")
    _, right, _ = serve(model, attention="gather")
    put = ExpandedTable.put

    def blocks_as_they_are(self, table):
        put(self, table)
        self.kernel_blocks[: len(table), : table.shape[1]] = table

    monkeypatch.setattr(ExpandedTable, "put", blocks_as_they_are)
    _, ours, _ = serve(model, attention="paged")
    first = len(PROMPTS[2])
    assert not (ours["2"][first] - right["2"][first]).abs().max() < 0.1


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@pytest.mark.usefixtures("precise")
def test_hits_windows_and_preemptions_go_through_the_kernel():
    """A pool too small for all: rows leave, come back behind hits, and blocks are poisoned."""
    model = make("gemma3")
    config = cache_config(model, num_blocks=24, block_size=16, kernel_block_size=4)
    answers = []
    for attention in ("gather", "paged"):
        runner = HuggingFaceModel(model, config, mode="batched", attention=attention)
        engine = Engine(EngineConfig(config, 32, poison_freed=True), runner)
        answers.append(engine.generate([text(60, seed=n) for n in range(4)], max_new_tokens=40))
        assert any(decision.verb == "preempt" for decision in engine.decisions())
    assert answers[0] == answers[1]


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
def test_16_bits_run_as_they_are(monkeypatch):
    """The dispatcher itself, in bfloat16, over a cache of both."""
    monkeypatch.setitem(globals(), "PROMPTS", PROMPTS[:2])
    monkeypatch.setitem(globals(), "NEW", 3)
    compare(build("qwen3", torch.bfloat16))


@pytest.mark.parametrize(
    ("family", "dtype", "reason"),
    [
        ("llama4", torch.bfloat16, "chunks are no windows"),
        ("deepseek_v3", torch.bfloat16, "entries are latent"),
        ("deepseek_v32", torch.bfloat16, "an indexer chooses what is attended to"),
        ("mamba2", torch.bfloat16, "the model has no attention"),
        ("qwen3", torch.float32, "entries are torch.float32, not 16 bits"),
    ],
)
def test_what_the_kernel_cannot_read_is_refused_with_the_reason(family, dtype, reason):
    model = make(family, dtype)
    config = cache_config(model, num_blocks=20, block_size=16)
    with pytest.raises(ConfigError, match=f"'paged' must be .* here gather: {reason}"):
        HuggingFaceModel(model, config, attention="paged")


def test_an_unknown_attention_is_refused():
    model = make("qwen3")
    with pytest.raises(ConfigError, match="attention 'flash' must be one of gather, paged"):
        HuggingFaceModel(model, cache_config(model, num_blocks=20), attention="flash")


@pytest.mark.usefixtures("precise")
def test_a_model_that_attends_to_other_entries_than_it_caches_is_no_silent_success(monkeypatch):
    update = PagedLayer.update

    def changed(self, *args, **kwargs):
        keys, values = update(self, *args, **kwargs)
        return keys * 1, values

    monkeypatch.setattr(PagedLayer, "update", changed)
    with pytest.raises(UnsupportedModel, match="attends to other entries than it caches"):
        serve(make("qwen3"), attention="paged")


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
def test_the_model_s_own_attention_is_back_afterwards(monkeypatch):
    monkeypatch.setitem(globals(), "PROMPTS", PROMPTS[:1])
    monkeypatch.setitem(globals(), "NEW", 2)
    model = build("qwen3_vl", torch.bfloat16)
    serve(model, attention="paged")
    assert model.config.text_config._attn_implementation == "sdpa"


INTERPRETED = """
import torch
from kvproof.kernels.dispatch import backend_of
from kvproof.suites.tests.models import test_model_runner_paged as tests
assert backend_of(torch.zeros(1)) == "interpreter"
tests.PROMPTS, tests.NEW = tests.PROMPTS[:2], 3
for family in ("gpt_oss", "gemma4"):
    tests.compare(tests.build(family, torch.bfloat16))
"""


def compare(model, **options):
    """Hold the logits of the first step against gathered ones; returns the runner."""
    _, right, _ = serve(model, attention="gather")
    _, ours, runner = serve(model, attention="paged", **options)
    assert runner.forward.paged_rows
    for name, expected in right.items():
        first = len(PROMPTS[int(name)])
        assert torch.equal(ours[name][:first], expected[:first]), "prompts are gathered"
        far = (ours[name][first] - expected[first]).abs().max()
        assert far < CLOSE * expected.abs().max(), (name, far)
    return runner


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
def test_the_kernel_runs_in_triton_s_interpreter():
    """The kernel's own code, with no GPU: sinks, windows, heads of unequal width."""
    pytest.importorskip("triton", reason="the extra gpu is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


# --- on a GPU ---


@ON_GPU
@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "gemma3", "gemma4", "qwen3_moe"])
@pytest.mark.parametrize("kernel_block_size", [16, 4])
def test_one_graph_serves_all_tables_that_come_later(family, kernel_block_size):
    """K4 at ratios 1 and 4."""
    model = build(family, torch.bfloat16, device="cuda")
    runner = compare(model, kernel_block_size=kernel_block_size)
    assert runner.forward.replays > NEW


@ON_GPU
@pytest.mark.parametrize("family", ["qwen3_next", "falcon_h1"])
def test_states_go_through_the_kernel_without_graphs(family):
    model = build(family, torch.bfloat16, device="cuda")
    assert compare(model).forward.replays == 0


@ON_GPU
def test_graphs_and_plain_steps_say_the_same():
    """Same kernels on the same buffers: whole answers, long behind the first token."""
    model = build("qwen3", torch.bfloat16, device="cuda")
    graphs = serve(model, attention="paged", mode="exact")
    plain = serve(model, attention="paged", mode="exact", graphs=False)
    assert graphs[2].forward.replays
    assert plain[2].forward.replays == 0
    assert graphs[0] == plain[0]
    for name, expected in plain[1].items():
        assert torch.equal(graphs[1][name], expected)
