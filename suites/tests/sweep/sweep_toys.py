"""A toy kernel, twice every page that a request names, and providers with planted faults."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from kvproof.kernels.source import Source, poison
from kvproof.kernels.spec import (
    Arguments,
    Case,
    Cost,
    Entry,
    Kernel,
    Launch,
    Problem,
    Provider,
    Tolerance,
)

PAGES = 12
ROWS = (1, 3, 8)
SIZES = (2, 4)


def cases() -> list[Case]:
    return [{"rows": rows, "page": page} for rows in ROWS for page in SIZES]


def make(case: Case, source: Source) -> Problem:
    rows, page = case["rows"], case["page"]
    table = source.permutation(PAGES)[:rows].contiguous()
    pool = source.normal((PAGES, page), torch.float32)
    unused = torch.ones(PAGES, dtype=torch.bool, device=source.device)
    unused[table.long()] = False
    pool[unused] = poison(pool[unused])
    out = source.output((rows, page), torch.float32)
    return Problem({"pool": pool, "table": source.put(table), "out": out}, ("out",))


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    rows = [2 * arguments["pool"][page] for page in arguments["table"].tolist()]
    return {"out": torch.stack(rows)}


KERNEL = Kernel(
    name="toy",
    sentence="twice every page that a request names",
    axes={"rows": ROWS, "page": SIZES},
    cells={"cpu": cases, "gpu": cases, "published": lambda: cases()[:1]},
    make=make,
    reference=reference,
    cost=lambda case, _: Cost(read=4 * case["rows"] * case["page"]),
    tolerance=lambda _: Tolerance(1e-3, 1e-3, "float32"),
    ceiling="read",
)
MISTYPED = replace(
    KERNEL,
    name="mistyped",
    choices={"kind": ("even", "odd")},
    cells={"cpu": lambda: [{**cases()[0], "kind": "evn"}]},
)
BROKEN = replace(KERNEL, reference=lambda *_: {"other": torch.zeros(1)})

Body = Callable[[Arguments], None]


def right(arguments: Arguments) -> None:
    arguments["out"].copy_(2 * arguments["pool"][arguments["table"].long()])


def provider(body: Body, *, name: str = "toys", where: Callable[[Case], bool] = bool) -> Provider:
    """A provider whose kernel is `body` in the cells of `where`, else right."""

    def prepare(case: Case, arguments: Arguments) -> Launch:
        chosen = body if where(case) else right
        return lambda: chosen(arguments)

    return Provider(name=name, version="1.0", kernels={"toy": Entry(prepare=prepare)})


def good() -> Provider:
    return provider(right, name="good")


good_too = good


def wrong_page(arguments: Arguments) -> None:
    table = arguments["table"].long()
    arguments["out"].copy_(2 * arguments["pool"][table.roll(1)])


def writes_outside(arguments: Arguments) -> None:
    right(arguments)
    out = arguments["out"]
    torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)


def reads_unrelated(arguments: Arguments) -> None:
    right(arguments)
    pool = arguments["pool"]
    arguments["out"][0, 0] += 0 * pool.sum()


def changes_inputs(arguments: Arguments) -> None:
    """Every second launch makes it good again."""
    right(arguments)
    arguments["table"].copy_(PAGES - 1 - arguments["table"])


def leaves_unwritten(arguments: Arguments) -> None:
    arguments["out"][1:].copy_(2 * arguments["pool"][arguments["table"].long()][1:])


def exits(arguments: Arguments) -> None:
    os._exit(7)


def hangs(arguments: Arguments) -> None:
    time.sleep(600)


def raises(arguments: Arguments) -> None:
    raise RuntimeError("no kernel image is available")


def leaves_the_table(arguments: Arguments) -> None:
    """On a GPU this breaks the context of the process."""
    arguments["out"].copy_(arguments["pool"][arguments["table"].long() + 1000])


def out_of_resources(arguments: Arguments) -> None:
    from triton.runtime.errors import OutOfResources

    raise OutOfResources(274432, 232448, "shared memory")


def forgets(arguments: Arguments) -> None:
    """Right once: what it keeps between launches is not reset."""
    arguments["launches"] = arguments.get("launches", 0) + 1
    right(arguments)
    arguments["out"].mul_(1 if arguments["launches"] == 1 else 3)


def wavers(arguments: Arguments) -> None:
    """Right within the tolerance, and never the same twice."""
    arguments["launches"] = arguments.get("launches", 0) + 1
    right(arguments)
    arguments["out"].mul_(1 + 1e-5 * arguments["launches"])


FAULTS: dict[str, Body] = {
    body.__name__: body
    for body in (
        wrong_page, writes_outside, reads_unrelated, changes_inputs, leaves_unwritten, exits,
        hangs, raises, leaves_the_table, out_of_resources, forgets, wavers,
    )
}  # fmt: skip


def _planted(body: Body) -> Callable[[], Provider]:
    return lambda: provider(body, name=body.__name__, where=lambda case: case["rows"] == 3)


for _name, _body in FAULTS.items():
    globals()[f"planted_{_name}"] = _planted(_body)


def seldom() -> Provider:
    """Supports cells of one row only."""
    entry = (
        good()
        .kernels["toy"]
        ._replace(unsupported=lambda case: "" if case["rows"] == 1 else "more than one row")
    )
    return Provider(name="seldom", version="1.0", kernels={"toy": entry})


def never() -> Provider:
    entry = good().kernels["toy"]._replace(unsupported=lambda _: "not on this machine")
    return Provider(name="never", version="1.0", kernels={"toy": entry})


def _lacks_memory(_: Arguments) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB.")


def crowded_baseline() -> Provider:
    return provider(_lacks_memory, name="torch", where=lambda case: case["rows"] == 3)


def ends_its_process() -> Provider:
    os._exit(5)


def not_installed() -> Provider:
    raise ImportError("the engine is not installed; pip install engine")
