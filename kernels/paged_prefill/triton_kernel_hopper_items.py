"""The items that a program of the Hopper kernel attends, one after the other.

The warps that copy keys read the numbers of an item while the one before is attended, and leave
them in shared memory to the other warps of the program.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kvproof.kernels.paged_prefill.triton_kernel_work import FIELDS

RING = gl.constexpr(8)
"""Items whose numbers are kept: warps are a few tiles apart, and an item has one or more."""

PLACE = gl.constexpr(16)
"""Numbers of an item in shared memory."""

START, NEW, LENGTH, REQUEST, FIRST, LOW, END, SLOT, KV_HEAD, CACHED, NUMBER = (
    gl.constexpr(i) for i in range(11)
)
"""Places of the numbers of an item; the last is its number in the list."""


@gluon.jit
def numbers_of_items():
    """Memory for the items of a program, and a barrier for each."""
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    numbers = gl.allocate_shared_memory(gl.int32, [RING * PLACE, 1], flat)
    ready = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(RING):
        mbarrier.init(ready.index(i), count=1)
    return numbers, ready


@gluon.jit
def place_of(n):
    """The place of the `n`-th item of this program in the list, in which times fall.

    Every other turn goes backwards, so that programs are done at the same time.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    return n * programs + gl.where(n % 2 == 0, program, programs - 1 - program)


@gluon.jit
def leave(listed, n, WARPS: gl.constexpr):
    """Leave the numbers of the `n`-th item of this program."""
    items, count, numbers, ready = listed
    number = place_of(n)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    row = items + gl.minimum(number, count - 1) * FIELDS
    found = ()
    for k in gl.static_range(NUMBER):
        found = found + (gl.load(row + k),)  # noqa: RUF005 - Triton has no starred expressions
    found = found + (number,)  # noqa: RUF005 - likewise
    place = (n % RING) * PLACE
    for k in gl.static_range(NUMBER + 1):
        numbers.index(place + k).store(gl.full([1], found[k], gl.int32, layout))
    mbarrier.arrive(ready.index(n % RING))


@gluon.jit
def number_of(listed, n, WHICH: gl.constexpr, WARPS: gl.constexpr):
    """A number of the `n`-th item, which is there."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.sum(listed[2].index((n % RING) * PLACE + WHICH).load(layout), 0)


@gluon.jit
def next_number(listed, n, WARPS: gl.constexpr):
    """Wait for the `n`-th item and return its number in the list."""
    mbarrier.wait(listed[3].index(n % RING), (n // RING) & 1)
    return number_of(listed, n, NUMBER, WARPS)
