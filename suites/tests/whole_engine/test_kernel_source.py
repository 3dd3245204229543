"""Kernels run from their source: what a kernel reads and writes, and where it may not."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.harness.adapters.vllm_engine.v2.language import Language, Pointer
from kvproof.harness.whole_engine.findings import IllegalAccess


def memory(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * 10


def test_a_block_is_read_where_its_mask_is_true_and_is_other_elsewhere():
    at = Language.arange(0, 4)
    found = Language.load(Pointer(memory(3)) + at, mask=at < 3, other=-1)
    assert found.tolist() == [0, 10, 20, -1]


def test_a_block_is_written_where_its_mask_is_true():
    own, at = memory(6), Language.arange(0, 4)
    Language.store(Pointer(own) + 2 + at, at, mask=at != 1)
    assert own.tolist() == [0, 10, 0, 30, 2, 3]


def test_a_scalar_is_read_and_written_and_pointers_go_back():
    own = memory(4)
    assert Language.load(Pointer(own) + 3 - 1) == 20
    assert Language.load(Pointer(own) + 9, mask=False, other=5) == 5
    Language.store(Pointer(own) + 1, 7)
    Language.store(Pointer(own) + 9, 7, mask=False)
    assert own.tolist() == [0, 7, 20, 30]


def test_an_address_of_a_tensor_becomes_a_pointer_to_it():
    language, own = Language(), memory(2)
    language.tensors = {4096: own}
    assert language.load(language.cast(4096, language.int32) + 1) == 10


def test_a_program_gets_its_own_number():
    language = Language()
    language.grid, language.program = (3, 2), (2, 1)
    assert (language.program_id(0), language.program_id(1), language.num_programs(0)) == (2, 1, 3)


@pytest.mark.parametrize("at", [-1, 4, np.array([0, 4]), np.array([-1, 2])])
def test_an_access_outside_of_a_tensor_is_illegal(at):
    with pytest.raises(IllegalAccess, match="of a tensor of 4"):
        Language.load(Pointer(memory(4)) + at)
    with pytest.raises(IllegalAccess, match="of a tensor of 4"):
        Language.store(Pointer(memory(4)) + at, 1)
