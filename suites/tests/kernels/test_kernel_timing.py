import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels import ceilings, timing

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "sets"), [(MIB, 250), (250 * MIB, 1), (251 * MIB, 1), (249 * MIB, 2), (0, 250 * MIB)]
)
def test_a_rotation_covers_five_times_the_cache(size, sets):
    assert timing.rotation(size, 50 * MIB) == sets


def test_the_answer_of_the_driver_is_read():
    cells = ["1980", "3201", "412.5", "[N/A]", "0x0000000000000006", "580.159"]
    assert timing._clock_values(cells) == {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "watts": 412.5,
        "throttle": "application clocks, software power cap",
        "driver": "580.159",
    }


@pytest.mark.skipif(DEVICE == "cuda", reason="what is said without a GPU")
def test_without_a_gpu_there_are_no_figures():
    with pytest.raises(RuntimeError, match="no time is taken without"):
        timing.measure([lambda: None])
    assert timing.clocks() == {}
    assert ceilings.measure_ceilings() == {}
    assert timing.device_facts()["name"] == "cpu"


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_sample_is_the_time_of_one_launch():
    source, target = torch.zeros((2, 256 * MIB), dtype=torch.uint8, device=DEVICE)
    one = timing.measure([lambda: target.copy_(source)], replays=5)
    two = timing.measure([lambda: target.copy_(source)] * 2, replays=5)
    assert len(one) == 5
    assert not one.why_eager
    assert 0.7 < sorted(one)[2] / sorted(two)[2] < 1.4
    assert timing.clocks()["sm_mhz"] > 0


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_what_cannot_be_captured_is_timed_eagerly_and_says_so():
    total = torch.ones(1, device=DEVICE)
    samples = timing.measure([lambda: total.item()], replays=3)
    assert len(samples) == 3
    assert samples.why_eager


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_every_ceiling_is_plausible():
    limits = ceilings.measure_ceilings()
    assert {"read", "copy", "matmul", "link", "launch"} <= set(limits)
    assert limits["read"].value > limits["read 16 MiB"].value
    assert limits["copy"].value > limits["link"].value
    assert all(len(limit.samples) > 1 and min(limit.samples) > 0 for limit in limits.values())
