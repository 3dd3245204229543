"""Adapters of the engines' kernels: what they pass on, what they refuse, what the engines take."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from kvproof.suites.tests.kernels.kernel_kit import judge, torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from kvproof.harness.isolation.environments import home
from kvproof.kernels.block_transfer import cells as transfer_cells
from kvproof.kernels.block_transfer import sweep as transfer
from kvproof.kernels.indexer import cells as indexer_cells
from kvproof.kernels.indexer import sweep as chooser
from kvproof.kernels.kv_fill import cells as fill_cells
from kvproof.kernels.kv_fill import sweep as fill
from kvproof.kernels.paged_decode import cells as decode_cells
from kvproof.kernels.paged_decode import sweep as decode
from kvproof.kernels.paged_prefill import cells as prefill_cells
from kvproof.kernels.paged_prefill import sweep as prefill
from kvproof.kernels.providers import (
    flashinfer,
    lmcache,
    lmdeploy,
    sglang,
    variants,
    vllm,
    vllm_deepgemm,
    vllm_fa3,
    vllm_flashmla,
)
from kvproof.kernels.providers.engine import (
    Engine,
    allocating,
    into,
    only_requests_with_tokens,
    tokens_of,
)
from kvproof.kernels.registry import provider, provider_names
from kvproof.kernels.source import Source
from kvproof.kernels.sparse_latent import cells as sparse_cells
from kvproof.kernels.sparse_latent import sweep as sparse
from kvproof.kernels.state_copy import sweep as state
from kvproof.kernels.state_step import sweep as state_step
from kvproof.suites.tests.kernels import peer_fakes

MAKERS = {
    maker.__name__: maker
    for maker in (
        lmdeploy.lmdeploy,
        vllm.vllm,
        vllm.vllm_mla,
        vllm_deepgemm.vllm_deepgemm,
        vllm_fa3.vllm_fa3,
        vllm_flashmla.vllm_flashmla,
        sglang.sglang,
        sglang.sglang_more_splits,
        flashinfer.flashinfer,
        flashinfer.flashinfer_cuda_cores,
        lmcache.lmcache,
    )
}
LATENT = {"head_dim": 576, "latent": 512, "kv_heads": 1, "page": 64, "kv_dtype": "bf16"}
CELLS = {
    "paged_decode": [
        decode_cells.cell(**{
            "batch": 4, "context": 70, "heads": 8, "kv_heads": 2, "head_dim": 32,
            "kv_dtype": "fp16", **change,
        })
        for change in (
            {}, {"page": 32}, {"lengths": "ragged"}, {"lengths": "edges", "batch": 9},
            {"window": 7}, {"window": 1}, {"sinks": True}, {"soft_cap": 4.0}, {"q_tokens": 3},
            {"q_tokens": 2, "window": 9}, {"kv_dtype": "int8"}, {"kv_dtype": "bf16"},
            {"kv_dtype": "int4"}, {"kv_dtype": "int4", "window": 7, "q_tokens": 2},
            {"head_dim": 48, "latent": 32, "kv_heads": 1}, {"kv_dtype": "fp8", "scales": "tensor"},
            {**LATENT}, {**LATENT, "q_tokens": 3, "lengths": "edges", "batch": 5},
        )
    ],
    "paged_prefill": [
        prefill_cells.cell(**{
            "batch": 3, "context": 40, "new": 19, "heads": 8, "kv_heads": 2, "head_dim": 32,
            "kv_dtype": "fp16", **change,
        })
        for change in (
            {}, {"page": 32}, {"lengths": "ragged"}, {"lengths": "edges", "batch": 11},
            {"window": 7}, {"window": 1}, {"sinks": True}, {"soft_cap": 4.0}, {"kv_dtype": "int8"},
            {"kv_dtype": "bf16"},
        )
    ],
    "kv_fill": [
        fill_cells.cell(**{
            "requests": 4, "tokens": 40, "past": 21, "heads": 2, "head_dim": 32, **change,
        })
        for change in (
            {}, {"page": 32}, {"batch": "ragged"}, {"layout": "HND"}, {"to": "slots"},
            {"to": "slots", "batch": "ragged"}, {"rows": "slice"}, {"rows": "latent"},
            {"dtype": "fp32"},
        )
    ],
    "state_copy": state.KERNEL.cells["cpu"]()[:6],
    "state_step": [
        state_step.cell(**{
            "rule": rule, "requests": 3, "heads": 2, "value_heads": 4, "key_dim": 8,
            "value_dim": 5, "dtype": "fp32", **change,
        })
        for rule in state_step.RULES
        for change in (
            {}, {"tokens": 3}, {"tokens": 3, "lengths": "ragged"}, {"kept": "none"},
            {"tokens": 2, "kept": "last"}, {"extras": False}, {"padding": 2}, {"slices": True},
        )
    ],
    "sparse_latent": [
        sparse_cells.cell(**{
            "tokens": 2, "heads": 64, "context": 150, "chosen": 64, "holes": "none", **change,
        })
        for change in ({}, {"holes": "tail", "sinks": True}, {"heads": 128, "chosen": 128},
                       {"page": 16}, {"heads": 40}, {"chosen": 65},
                       {"kv_dtype": "bf16", "chosen": 128, "heads": 16},
                       {"kv_dtype": "bf16", "chosen": 128, "sinks": True, "holes": "all"},
                       {"kv_dtype": "bf16", "heads": 40}, {"kv_dtype": "bf16", "chosen": 64})
    ],
    "indexer": [
        indexer_cells.cell(**{"batch": 2, "context": 150, "chosen": 20, **change})
        for change in ({}, {"q_tokens": 2}, {"page": 32, "heads": 32}, {"page": 16}, {"heads": 40},
                       {"q_tokens": 3}, {"slots": True}, {"lengths": "edges"},
                       {"q_tokens": 30, "batch": 1})
    ],
    "block_transfer": [
        transfer_cells.cell(**{
            "heads": 2, "page": 4, "layers": 3, "objects": 5, "tokens": 8, "head_bytes": 6,
            **change,
        })
        for change in (
            *({"layout": layout} for layout in lmcache.FORMATS if layout != "indexer"),
            {"layout": "indexer", "head_bytes": 20}, {"direction": "scatter"}, {"skip": 12},
            {"direction": "scatter", "skip": 36, "layout": "kv-hnd"}, {"skip": 3}, {"holes": 1},
            {"head_bytes": 33}, {"shift": 4}, {"tokens": 7}, {"layout": "indexer"},
        )
    ],
}  # fmt: skip
KERNELS = {
    "paged_decode": decode,
    "paged_prefill": prefill,
    "kv_fill": fill,
    "state_copy": state,
    "state_step": state_step,
    "sparse_latent": sparse,
    "indexer": chooser,
    "block_transfer": transfer,
}
OFFERED = [
    (maker, name, entry)
    for maker, function in MAKERS.items()
    for name, entry in peer_fakes.offered(function).items()
]
CASES = [
    pytest.param(name, entry, case, id=f"{maker}-{name}-{number}")
    for maker, name, entry in OFFERED
    for number, case in enumerate(CELLS[name])
    if not entry.unsupported(case)
]


@pytest.fixture
def engines(monkeypatch):
    peer_fakes.install(monkeypatch)


@pytest.mark.parametrize(("name", "entry", "case"), CASES)
def test_an_engine_that_does_what_it_documents_gives_the_right_answer(engines, name, entry, case):
    judge(KERNELS[name].KERNEL, entry, case)


@pytest.mark.parametrize(
    ("name", "entry"),
    [pytest.param(name, entry, id=f"{maker}-{name}") for maker, name, entry in OFFERED],
)
def test_a_kernel_runs_some_cells_and_says_why_not_the_others(name, entry):
    answers = [entry.unsupported(case) for case in CELLS[name]]
    assert "" in answers
    for why in filter(None, answers):
        assert why[0].islower() or why.split()[0] in SPELT, why
        assert not why.endswith("."), why


SPELT = ("FP8", "INT4", "INT8", "FlashAttention", "FlashInfer", "SGLang")


@pytest.mark.parametrize(
    ("maker", "name", "change", "why"),
    [
        ("lmdeploy", "paged_decode", {"page": 8}, "so it has at least 16 tokens"),
        ("lmdeploy", "paged_decode", {"page": 48}, "its size is a power of two; it is 48"),
        ("lmdeploy", "paged_decode", {"q_tokens": 2}, "all see the whole context"),
        ("lmdeploy", "kv_fill", {"to": "slots"}, "new tokens are placed by block tables"),
        ("vllm", "paged_decode", {"latent": 512}, "keys and values have one head size"),
        ("vllm", "paged_decode", {"kv_dtype": "fp8"}, "one scale each, not one for each head"),
        ("vllm", "kv_fill", {"cache": "int4"}, "rotated before they are written"),
        ("vllm_mla", "paged_decode", {"window": 9}, "no window and no sinks"),
        ("vllm_fa3", "paged_decode", {"kv_dtype": "fp8"}, "another accuracy"),
        ("vllm_flashmla", "paged_decode", {"page": 32}, "a page has 64 tokens; it has 32"),
        ("vllm_flashmla", "paged_decode", {"sinks": True}, "no window, no sinks"),
        ("vllm_flashmla", "paged_decode", {"kv_dtype": "fp8"}, "the dtype of the query"),
        ("vllm_flashmla", "paged_decode", {"latent": 0}, "latent rows have 576 columns"),
        ("sglang", "kv_fill", {"to": "slots", "batch": "ragged"}, "a slot below 0 is an error"),
        ("flashinfer", "paged_decode", {"sinks": True}, "sinks need a module compiled for them"),
        ("flashinfer_cuda_cores", "paged_decode", {"heads": 40}, "it is 5"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_do_is_said_from_the_case(maker, name, change, why):
    usual = decode_cells.cell() if name == "paged_decode" else fill_cells.cell()
    if maker == "vllm_flashmla":
        usual = decode_cells.cell(**LATENT)
    entry = peer_fakes.offered(MAKERS[maker])[name]
    assert entry.unsupported(usual) == ""
    assert why in entry.unsupported({**usual, **change})


def test_shared_memory_is_not_predicted():
    """LMDeploy's tile of 256 tokens of 256 numbers does not fit: the launch has to say so."""
    entry = peer_fakes.offered(lmdeploy.lmdeploy)["paged_decode"]
    assert entry.unsupported(decode_cells.cell(page=256, head_dim=256)) == ""


def test_a_missing_engine_is_named_with_what_to_install():
    engine = Engine("Nobody's engine", "kvproof-nobodys-engine", "1.2.3")
    with pytest.raises(
        ImportError, match=r"Nobody's engine is not installed .* 1\.2\.3: pip install"
    ):
        engine.version()


def test_a_function_that_moved_is_named(monkeypatch):
    monkeypatch.setattr(Engine, "version", lambda _: "9.9")
    engine = Engine("Elsewhere", "elsewhere", "1.0")
    with pytest.raises(ImportError, match=r"Elsewhere 9\.9 has no nothing in json; 1\.0 has it"):
        engine.load("json", "nothing")


def test_every_provider_is_an_entry_point():
    assert set(MAKERS) <= set(provider_names())


@pytest.mark.parametrize("name", MAKERS)
def test_a_provider_without_its_engine_is_refused(name):
    if find_spec(name.split("_")[0]) is not None:
        pytest.skip(f"the engine of {name} is installed here")
    with pytest.raises(ImportError, match="is not installed in this environment"):
        provider(name)


def test_an_engine_allocates_the_output_that_is_judged():
    q, out = torch.zeros(3, 2, 8, dtype=torch.float16), torch.ones(3, 2, 4, dtype=torch.float16)
    view = allocating(q, out)
    assert view.new_empty((3, 2, 4)) is out
    assert view.new_empty(3, 2, 4) is out
    assert view.new_empty((3, 2, 4), dtype=torch.float32) is not out
    assert view.new_empty((3, 2, 5)) is not out
    into(out, out)
    into(out, torch.full_like(out, 7))
    assert bool((out == 7).all())


def test_tokens_are_named_by_slots():
    table = torch.tensor([[4, 2, 9], [7, 1, 9]], dtype=torch.int32)
    found = tokens_of(table, torch.tensor([1, 0]), torch.tensor([5, 2]), page_size=4)
    assert found.starts.tolist() == [0, 4, 6]
    assert found.slots.tolist() == [17, 18, 19, 8, 28, 29]


def test_requests_without_tokens_are_not_sent():
    sent = []

    def prepare(_, arguments):
        sent.append(arguments["lengths"].tolist())
        return lambda: arguments["out"].fill_(1)

    out = torch.full((3, 1, 2, 4), float("nan"))
    arguments = {
        "q": torch.zeros(3, 1, 2, 4),
        "block_table": torch.zeros(3, 2, dtype=torch.int32),
        "lengths": torch.tensor([5, 0, 2]),
        "out": out,
    }
    only_requests_with_tokens(prepare)({}, arguments)()
    assert sent == [[5, 2]]
    assert out[:, 0, 0, 0].tolist() == [1, 0, 1]


def source_of(module):
    """The engine's file, found without importing the engine; nothing if it is not installed."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    installed = home().glob(f"targets/{top}-*")
    for environment in sorted(installed, key=release_of, reverse=True):  # the newest, if several
        roots += environment.glob(f"lib/python*/site-packages/{top}")
    for root in roots:
        path = root.joinpath(*rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def release_of(environment):
    return Version(environment.name.rpartition("-")[2])


def parameters_of(file, name):
    """Parameters of a function or method in a file or one beside it, and how many are needed."""
    owner, _, method = name.rpartition(".")
    for candidate in (file, *sorted(file.parent.glob("*.py"))):
        body = ast.parse(candidate.read_text()).body
        if owner:
            classes = [
                node for node in body if isinstance(node, ast.ClassDef) and node.name == owner
            ]
            body = [node for found in classes for node in found.body]
        # `plan` of FlashInfer hands what it is given on to `_plan_impl`.
        made = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef) and node.name in (method, f"_{method}_impl")
        ]
        if made:
            positional = [*made[-1].args.posonlyargs, *made[-1].args.args]
            needed = len(positional) - len(made[-1].args.defaults)
            named = [*positional, *made[-1].args.kwonlyargs]
            return [arg.arg for arg in named], needed
    return None, 0


@pytest.mark.parametrize(
    ("module", "name", "fake"),
    [pytest.param(*found, id=".".join(found[:2])) for found in peer_fakes.functions()],
)
def test_the_engine_still_takes_what_is_passed(module, name, fake):
    file = source_of(module)
    if file is None:
        pytest.skip(f"no source of {module} is installed here")
    names, needed = parameters_of(file, name)
    assert names is not None, f"{file} has no {name}"
    mine = inspect.signature(fake).parameters
    required = [p.name for p in mine.values() if p.default is p.empty]
    assert set(mine) <= set(names), f"{file}: {name} does not take {set(mine) - set(names)}"
    # What is passed by position has to stand where the engine has it.
    assert names[:needed] == required[:needed], f"{file}: {name} begins with {names[:needed]}"


PREFILLS = {
    "one_copier": (1, False),
    "two_copiers": (2, False),
    "gathered": (1, True),
}


@pytest.mark.parametrize("name", PREFILLS)
def test_a_form_of_the_prefill_is_the_chosen_plan_with_one_change(monkeypatch, name):
    chosen = variants.plans.Plan(rows=128, tile=64, stages=2, hopper=True, pieces=4)
    monkeypatch.setattr(variants.plans, "choose", lambda *_: chosen)
    sent = {}
    monkeypatch.setattr(variants, "paged_prefill", lambda **named: sent.update(named))
    case = CELLS["paged_prefill"][0]
    arguments = prefill.KERNEL.make(case, Source(seed=0, device="cpu")).arguments
    getattr(variants, name)().kernels["paged_prefill"].prepare(case, arguments)()
    copiers, gather = PREFILLS[name]
    assert sent.pop("plan") == dataclasses.replace(chosen, copiers=copiers, gather=gather)
    assert sent == arguments


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"kv_dtype": "fp8"}, "pages are copied directly"),
        ({"page": 4}, "pages are copied directly"),
        ({"new": 2}, "a KV head has at least 40 query rows"),
    ],
)
def test_a_form_of_the_prefill_needs_its_kernel(monkeypatch, change, why):
    entry = variants.gathered().kernels["paged_prefill"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert entry.unsupported(prefill_cells.cell(**{"new": 2048, **change})).startswith(why)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert "compute capability 9" in entry.unsupported(prefill_cells.cell())


def test_the_portable_decode_is_right_where_another_kernel_would_be_chosen():
    entry = variants.portable().kernels["paged_decode"]
    assert "only latent rows" in entry.unsupported(decode_cells.cell())
    case = decode_cells.cell(**{**LATENT, "batch": 2, "context": 20, "heads": 3})
    assert entry.unsupported(case) == ""
    judge(decode.KERNEL, entry, case)
