import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, judge, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.source import Source
from kvproof.kernels.state_copy import copy_rows, state_pools
from kvproof.kernels.state_copy.sweep import KERNEL, OURS, case


@pytest.mark.parametrize("seed", range(3))
def test_another_seed_finds_nothing_new(seed):
    padded = case(pairs=9, layers=3, conv_elements=7, ssm_elements=65, padding=4)
    judge(KERNEL, OURS, padded, seed=seed)


def test_the_rows_before_and_behind_the_pools_are_canaries():
    """A padding of -1 that is taken for a row is read or written there, not in others' memory."""
    source = Source(seed=0, device="cpu")
    large = case(pairs=2, layers=1, conv_elements=3, ssm_elements=9001)
    pool = KERNEL.make(large, source).arguments["ssm"]
    start, row = pool.storage_offset(), pool.shape[-1]
    assert source.broken_canaries() == 0
    for first in (start - row, start + pool.numel()):
        torch.as_strided(pool, (row,), (1,), first).fill_(1)
    assert source.broken_canaries() == 2 * row


def test_without_canaries_memory_is_laid_out_as_in_an_engine():
    source = Source(seed=0, device="cpu", guarded=False)
    made = source.output((3, 5000), torch.uint8, reach=5000)
    assert made.untyped_storage().nbytes() == 15008


def pools(*shapes, rows=6):
    return [torch.randn((rows, *shape), device=DEVICE) for shape in shapes]


def rows(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def test_pools_of_any_shape_and_row_stride_are_copied_together():
    padded = torch.zeros((6, 40), device=DEVICE)[:, :33]
    mixed = [*pools((3, 5), (7,)), padded.copy_(torch.randn(6, 33)), torch.arange(6, device=DEVICE)]
    before = [pool.clone() for pool in mixed]
    copy_rows(state_pools(mixed), rows(1, 4), rows(5, 2))
    for pool, old in zip(mixed, before, strict=True):
        wanted = old.clone()
        wanted[5], wanted[2] = old[1], old[4]
        assert torch.equal(pool, wanted)


def test_without_triton_torch_copies_the_same(monkeypatch):
    monkeypatch.setattr("kvproof.kernels.state_copy.launch.runs_triton", lambda _: False)
    pool = pools((4,))[0].cpu()
    before = pool.clone()
    copy_rows(state_pools([pool]), rows(1, 0, 3).cpu(), rows(2, 4, -1).cpu())
    assert torch.equal(pool[2], before[1])
    assert torch.equal(pool[[0, 1, 3, 4, 5]], before[[0, 1, 3, 4, 5]])


def test_no_pairs_are_no_launch():
    pool = pools((4,))[0]
    before = pool.clone()
    copy_rows(state_pools([pool]), rows(), rows(), check_rows=True)
    assert torch.equal(pool, before)


@pytest.mark.parametrize(
    ("sources", "destinations", "words"),
    [
        ((1, 6), (2, 3), "sources holds ids 1 to 6, expected 1 to 5"),
        ((1, 2), (3, 9), "destinations holds ids 3 to 9, expected 1 to 5"),
        ((1, 2), (3, 3), "destinations holds rows [3] more than once"),
        ((1, 2), (2, 4), "rows [2] are sources and destinations"),
    ],
)
def test_rows_that_race_or_do_not_exist_are_refused_on_request(sources, destinations, words):
    states = state_pools(pools((4,)))
    with pytest.raises(ArgumentError) as refused:
        copy_rows(states, rows(*sources), rows(*destinations), check_rows=True)
    assert words in str(refused.value)


def test_padding_may_repeat_and_overlap():
    states = state_pools(pools((4,)))
    copy_rows(states, rows(0, -1, 0, 3), rows(2, 2, 3, 0), check_rows=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (list, "pools is empty"),
        (lambda: [*pools((4,)), *pools((4,), rows=5)], "pool 1 has shape (5, 4), pool 0 (6, 4)"),
        (lambda: [pools((4, 4))[0].transpose(1, 2)], "each row must be contiguous"),
    ],
)
def test_pools_that_do_not_fit_are_refused(given, words):
    with pytest.raises(ArgumentError) as refused:
        state_pools(given())
    assert words in str(refused.value)


def test_lists_that_do_not_fit_are_refused():
    states = state_pools(pools((4,)))
    with pytest.raises(ArgumentError, match="destinations has shape"):
        copy_rows(states, rows(1, 2), rows(3))
    with pytest.raises(ArgumentError, match=r"sources is torch\.float32, expected int32 or int64"):
        copy_rows(states, rows(1).float(), rows(3))
