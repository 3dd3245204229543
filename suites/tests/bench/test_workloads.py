from itertools import pairwise

import numpy as np
import pytest

from kvproof.harness.bench.belady import Depths, engine_blocks
from kvproof.harness.bench.workloads import GENERATORS, VOCABULARY, Workload, load_workload
from kvproof.harness.errors import UsageError

SMALL = {
    "shared-prefix": "shared-prefix:requests=60,length=300,shared=0.5,families=4",
    "multi-turn": "multi-turn:requests=60,turns=4,system=40,user=30,reply=50,concurrent=5",
    "agents": "agents:requests=60,steps=6,tools=50,task=30,step=20,branch=0.5,concurrent=3",
    "uniform": "uniform:requests=60,length=200",
}


GOLDEN = [
    [72828, 132529, 146296, 40041, 113819, 95497, 123028, 124577],
    [72828, 132529, 146296, 40041, 102731, 135510, 141038, 3529],
]


def infinite_hit_rate(workload: Workload) -> float:
    return Depths(engine_blocks(workload, 1)).infinite().tokens


def path_of(workload: Workload, index: int) -> list[tuple[int, int]]:
    start, stop = workload.paths.bounds[index : index + 2]
    return list(
        zip(
            workload.paths.ids[start:stop].tolist(),
            workload.paths.counts[start:stop].tolist(),
            strict=True,
        )
    )


def test_every_generator_has_a_small_form_here() -> None:
    assert SMALL.keys() == GENERATORS.keys()


def test_tokens_are_the_same_on_every_machine() -> None:
    workload = load_workload("shared-prefix:requests=2,length=8,shared=0.5,families=1")
    assert workload.prompt(0).tolist() == GOLDEN[0]
    assert workload.prompt(1).tolist() == GOLDEN[1]


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL.keys())
def test_prompts_repeat_with_the_seed_and_differ_without(spec: str) -> None:
    first, again, other = (load_workload(s) for s in (spec, spec, f"{spec},seed=2"))
    for index in range(first.requests):
        assert np.array_equal(first.prompt(index), again.prompt(index))
    assert not np.array_equal(first.prompt(0)[:20], other.prompt(0)[:20])


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL.keys())
def test_prompts_are_int32_token_ids_of_the_stated_lengths(spec: str) -> None:
    workload = load_workload(spec)
    prompts = [workload.prompt(index) for index in range(workload.requests)]
    assert {prompt.dtype for prompt in prompts} == {np.dtype(np.int32)}
    assert [len(prompt) for prompt in prompts] == workload.lengths.tolist()
    assert sum(map(len, prompts)) == workload.tokens
    assert min(p.min() for p in prompts) >= 0
    assert max(p.max() for p in prompts) < VOCABULARY


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL.keys())
def test_tokens_are_shared_exactly_where_the_paths_are(spec: str) -> None:
    workload = load_workload(spec)
    for one, two in pairwise([*range(0, 60, 7), *range(1, 60, 5), *range(8)]):
        if one == two:
            continue
        paths = path_of(workload, one), path_of(workload, two)
        common = 0
        for left, right in zip(*paths, strict=False):
            if left != right:
                break
            common += left[1]
        a, b = workload.prompt(one), workload.prompt(two)
        size = min(len(a), len(b))
        differing = np.flatnonzero(a[:size] != b[:size])
        assert (differing[0] if len(differing) else size) == common


def test_tokens_are_spread_evenly_over_the_vocabulary() -> None:
    tokens = load_workload("uniform:requests=50,length=4000,spread=0").prompt(7)
    many = np.concatenate([tokens, load_workload("uniform:requests=50,length=40000").prompt(3)])
    counts = np.histogram(many, bins=10, range=(0, VOCABULARY))[0]
    assert np.all(np.abs(counts / len(many) - 0.1) < 0.015)


@pytest.mark.parametrize("max_tokens", [1, 500, 10**9])
def test_batches_hold_every_prompt_once_and_stay_small(max_tokens: int) -> None:
    workload = load_workload(SMALL["agents"])
    seen = 0
    for first, prompts in workload.batches(max_tokens):
        assert first == seen
        assert len(prompts) == 1 or sum(map(len, prompts)) <= max_tokens
        for offset, prompt in enumerate(prompts):
            assert np.array_equal(prompt, workload.prompt(first + offset))
        seen += len(prompts)
    assert seen == workload.requests


def test_head_keeps_the_leading_requests() -> None:
    workload = load_workload(SMALL["multi-turn"])
    head = workload.head(7)
    assert (head.requests, head.tokens) == (7, int(workload.lengths[:7].sum()))
    assert np.array_equal(head.prompt(6), workload.prompt(6))
    assert workload.head(1000).requests == workload.requests


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("shared-prefix", 0.744),
        ("shared-prefix:shared=0.5,families=100", 0.5 * (1 - 100 / 2000)),
        ("shared-prefix:shared=0", 0),
        ("multi-turn", 0.84),
        ("multi-turn:requests=4000,turns=1,user=1024,systems=1", 0.5),
        ("agents", 0.93),
        ("uniform", 0),
    ],
)
def test_hit_rates_are_the_documented_ones(spec: str, expected: float) -> None:
    assert infinite_hit_rate(load_workload(spec)) == pytest.approx(expected, abs=0.01)


def test_lengths_are_the_documented_ones() -> None:
    lengths = load_workload("uniform:length=1000,spread=0.25").lengths
    assert (lengths.min(), lengths.max()) == pytest.approx((750, 1250), abs=3)
    assert lengths.mean() == pytest.approx(1000, rel=0.02)
    assert set(load_workload("shared-prefix").lengths.tolist()) == {4096}


def test_agents_branch_as_often_as_asked() -> None:
    def forks(branch: float) -> float:
        workload = load_workload(f"agents:branch={branch}")
        parents: dict[int, int] = {}
        for index in range(workload.requests):
            path = path_of(workload, index)
            parents[path[-2][0]] = parents.get(path[-2][0], 0) + 1
        return sum(n > 1 for n in parents.values()) / len(parents)

    assert forks(0) == 0
    assert 0.1 < forks(0.25) < 0.3
    assert forks(1) > 0.3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shared-head", "unknown workload 'shared-head'; did you mean 'shared-prefix'?"),
        ("nothing", "unknown workload 'nothing'"),
        ("", "unknown workload ''"),
        ("agents:brunch=1", "agents has no parameter 'brunch'; did you mean 'branch'?"),
        ("uniform:length=0", "length='0' is not an integer from 1"),
        ("uniform:length=1e3", "length='1e3' is not an integer from 1"),
        ("uniform:length", "length='' is not an integer from 1"),
        ("uniform:seed=-1", "seed='-1' is not an integer from 0"),
        ("uniform:spread=1.5", "spread='1.5' is not a number from 0 to 1"),
        ("uniform:spread=nan", "spread='nan' is not a number from 0 to 1"),
    ],
)
def test_an_unusable_spec_says_what_was_meant(spec: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_workload(spec)
    assert str(caught.value) == message
    assert caught.value.hint
