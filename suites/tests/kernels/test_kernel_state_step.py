import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, close, fit_a_hopper, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Tolerance
from kvproof.kernels.state_step import gated_delta_step, mamba2_step
from kvproof.kernels.state_step.step import MOST_KEY
from kvproof.kernels.state_step.sweep import KERNEL, cell

SMALL = cell(requests=2, tokens=4, heads=1, value_heads=2, key_dim=8, value_dim=5, dtype="fp32")
LIMIT = Tolerance(1e-5, 2e-5, "computed in float32")
MAMBA2 = {"v": "x", "strengths": "dt", "decays": "a", "k": "b", "q": "c", "bias": "dt_bias"}
EACH_RULE = pytest.mark.parametrize("rule", ["delta", "mamba2"])


def arguments_of(case):
    return KERNEL.make(case, Source(seed=2, device=DEVICE)).arguments


def take(arguments, **changed):
    """Take the step of a cell's arguments with the function of its rule."""
    given = {**arguments, **changed}
    if given.pop("delta"):
        del given["bias"], given["skips"]
        gated_delta_step(**given)
    else:
        del given["scale"], given["normalised"]
        mamba2_step(**{MAMBA2.get(name, name): value for name, value in given.items()})


def part(arguments, first, count):
    """The tokens `first` to `first + count - 1` of each of the requests, which have four."""
    each = {}
    for name in ("q", "k", "v", "strengths", "out", "decays"):
        tensor = arguments[name]
        if tensor.dim() == 1:
            continue
        cut = tensor.unflatten(0, (-1, 4))[:, first : first + count]
        each[name] = cut.flatten(0, 1).contiguous()
    starts = count * torch.arange(3, dtype=torch.int32, device=DEVICE)
    return {**arguments, **each, "query_starts": starts}


@EACH_RULE
def test_rejected_drafts_leave_no_trace(rule):
    """Two of four drafts are accepted: the next step reads the row of the second."""
    arguments = arguments_of({**SMALL, "rule": rule})
    states, rows = arguments["states"].clone(), arguments["rows"]
    take(arguments)
    after = part(arguments, 2, 2)
    take(after, sources=rows[:, 1].contiguous(), rows=rows[:, 2:].contiguous())
    plain = part({**arguments, "states": states}, 0, 2)
    take(plain, rows=rows[:, :2].contiguous())
    wanted = part({**arguments, "states": states}, 2, 2)
    take(wanted, sources=rows[:, 1].contiguous(), rows=rows[:, 2:].contiguous())
    close(after["out"], wanted["out"], LIMIT, "out")
    close(arguments["states"], states, LIMIT, "states")


@EACH_RULE
def test_a_state_may_be_overwritten_in_place(rule):
    arguments = arguments_of({**SMALL, "rule": rule, "tokens": 1})
    apart, source = arguments["states"].clone(), arguments["sources"]
    take(arguments, states=apart)
    out = arguments["out"].clone()
    take(arguments, rows=source[:, None].contiguous(), check_contents=True)
    assert torch.equal(out, arguments["out"])
    assert torch.equal(arguments["states"][source], apart[arguments["rows"][:, 0]])


@EACH_RULE
def test_states_behind_the_width_of_rows_are_not_kept(rule):
    arguments = arguments_of({**SMALL, "rule": rule})
    take(arguments, rows=arguments["rows"][:, :2].contiguous())
    kept = arguments["states"].flatten(1).isfinite().all(1)
    assert kept[arguments["rows"][:, :2]].all()
    assert not kept[arguments["rows"][:, 2:]].any()


def test_tokens_behind_the_last_request_are_padding():
    arguments = arguments_of(SMALL)
    starts = torch.tensor([0, 4, 6], dtype=torch.int32, device=DEVICE)
    take(arguments, query_starts=starts)
    assert arguments["out"][:6].isfinite().all()
    assert arguments["out"][6:].isnan().all()


def test_no_requests_are_no_launch():
    arguments = arguments_of(SMALL)
    before = arguments["states"].clone()
    starts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    none = {name: arguments[name][:0] for name in ("sources", "rows")}
    take(arguments, **none, query_starts=starts)
    assert torch.equal(before.isnan(), arguments["states"].isnan())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key_dim": MOST_KEY + 1}, f"key size is {MOST_KEY + 1}, expected 1 to {MOST_KEY}"),
        ({"heads": 3, "value_heads": 4}, "4 heads of values, 3 of keys"),
    ],
)
@EACH_RULE
def test_sizes_just_outside_of_the_range_are_refused(rule, changes, words):
    with pytest.raises(ArgumentError, match=words):
        take(arguments_of({**SMALL, "rule": rule, **changes}))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("q", lambda q: q[..., :4], "queries has shape"),
        ("states", lambda states: states.transpose(2, 3).contiguous().transpose(2, 3), "strides"),
        ("states", lambda states: states.double(), r"states is torch\.float64"),
        ("out", lambda out: out[:-1], "keys has shape"),
        ("sources", lambda sources: sources.float(), r"sources is torch\.float32"),
        ("rows", lambda rows: rows[:1], "rows has shape"),
        ("rows", lambda rows: rows[:, ::2], "rows has strides"),
        ("query_starts", lambda starts: starts[:-1], "query_starts has shape"),
        ("query_starts", lambda _: None, "out has shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, change, words):
    arguments = arguments_of(SMALL)
    with pytest.raises(ArgumentError, match=words):
        take({**arguments, name: change(arguments[name])})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sources": (1, 11)}, "sources holds ids 1 to 11, expected 1 to 10"),
        ({"rows": ((3, 4, 5, 6), (7, 8, 9, 3))}, r"rows holds \[3\] more than once"),
        ({"rows": ((3, 4, 5, 2), (7, 8, 9, 10))}, r"sources \[2\] are rows of other requests"),
        ({"query_starts": (0, 5, 4)}, "must begin with 0 and never fall"),
        ({"query_starts": (0, 4, 9)}, "query_starts holds ids 0 to 9, expected 0 to 8"),
    ],
)
def test_contents_that_race_or_do_not_exist_are_refused_on_request(changes, words):
    fitting = {"sources": (1, 2), "rows": ((3, 4, 5, 1), (7, 8, 9, 2)), **changes}
    lists = {
        name: torch.tensor(values, dtype=torch.int32, device=DEVICE)
        for name, values in fitting.items()
    }
    with pytest.raises(ArgumentError, match=words):
        take(arguments_of(SMALL), **lists, check_contents=True)


@pytest.mark.slow(reason="compiles every launch")
def test_it_compiles_for_a_hopper():
    fit_a_hopper(
        [
            {"kernel": "state_step", "delta": delta, "state": state, "once": once, "extras": once}
            for delta in (True, False)
            for state, once in (("fp32", True), ("bf16", False))
        ]
    )
