"""Jobs of the device test, for processes of their own."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from hypothesis import HealthCheck, Phase, settings

from kvproof.harness.oracle.violation import Violation
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.suites.framework.component_suite import Config, Draw, History
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.transfer.draws import MODELS, model
from kvproof.suites.reference.transfer.machine import TransferMachine
from kvproof.suites.reference.transfer.properties import PROPERTIES
from kvproof.suites.reference.transfer.strategies import PROFILES, SUITE
from kvproof.suites.tests.lab.stress.transfer.round_trip import every_width, ids_of, round_trip
from kvproof.suites.tests.lab.stress.transfer.served import in_two_processes, through_a_server

HISTORIES = 1000
"""Of one profile in one job, if there is time."""
STEPS = 25
TOLD_APART = ("DeepSeek-V3.2 and GLM-5", "Falcon-H1 1.5B", "gpt-oss 20B")
"""Models whose pages two processes share."""
FAR = (2, 20_000, 64, 8, 128)
"""A layer whose pages and planes lie further than 2 GiB apart."""


class Job(NamedTuple):
    """One thing to do; `config` is JSON."""

    kind: str
    name: str
    config: Config


class Done(NamedTuple):
    """Result of a job."""

    kind: str
    name: str
    seconds: float
    checks: Counter[str]
    wrong: str
    """Empty, or the errors."""


def jobs(device: str, *, processes: int, seed: int) -> Iterator[Job]:
    """Yield all jobs, the endless ones last: as many random histories as processes."""
    for name in MODELS:
        whole = model(name, 3) | {"device": device}
        yield Job("model", name, whole)
        yield Job("model late", name, whole | {"delay": seed})
        yield Job("same bytes", name, whole)
        yield Job("cache server", name, whole)
    for name in TOLD_APART:
        yield Job("two processes", name, model(name, 3) | {"device": device})
    for config in every_width(step=25):
        widths = sorted(cache["head"] - cache["scales"] for cache in config["caches"])
        found = config | {"device": device, "slots": 2}
        yield Job("widths", f"{widths[0]} to {widths[-1]}", found)
    if torch.device(device).type == "cuda":
        yield Job("deaf", "streams that wait for nothing", model("gpt-oss 20B", 2) | {
            "device": device, "delay": seed, "deaf": True})  # fmt: skip
        yield Job("not pinned", "an object", model("gpt-oss 20B", 2) | {"device": device})
        yield Job("far", "a layer of 5 GiB", {"device": device})
    for number in range(processes):
        yield Job("random", f"seed {seed + number}", {"device": device, "seed": seed + number})


def do(job: Job, deadline: float) -> Done:
    """Run a job; `deadline` in seconds of `time.time` ends the endless ones."""
    begin = time.monotonic()
    try:
        checks, wrong = _WAYS[job.kind](job.config, deadline), ""
    except Violation as violation:
        checks, wrong = Counter[str](), f"{violation.property}: {violation.sentence}"
    except Exception as error:  # noqa: BLE001 - whatever a device answers is told with its job
        checks, wrong = Counter[str](), "".join(traceback.format_exception(error))
    return Done(job.kind, job.name, time.monotonic() - begin, checks, wrong)


def _round_trip(config: Config, _: float) -> Counter[str]:
    return round_trip(config).checks


def _deaf(config: Config, _: float) -> Counter[str]:
    """Streams that wait for nothing must be found out, or the pauses prove nothing."""
    for turn in range(20):
        try:
            round_trip(config | {"delay": config["delay"] + turn})
        except Violation:
            return Counter({"streams_that_wait_for_nothing_are_found": 1})
    raise Violation(
        "every_byte_read_was_written", "", "20 round trips without any wait were not found out"
    )


def _same_bytes(config: Config, _: float) -> Counter[str]:
    """A device and a CPU store equal objects, and each reads back the other's."""
    coverage = Coverage(PROPERTIES)
    here, there = (
        TransferMachine(config | {"device": device}, coverage)
        for device in ("cpu", config["device"])
    )
    for machine in (here, there):
        machine.store(ids=ids_of(machine, 2, 0), objects=[0, 1], skip=0)
    for at in (0, 1):
        mine, theirs = here.subject.objects[at].raw, there.subject.objects[at].raw
        coverage.check(
            "stored_bytes_equal_the_pages",
            torch.equal(mine, theirs),
            lambda: f"a chunk on {config['device']} has other bytes than on a CPU",
        )
    for machine, other in ((here, there), (there, here)):
        for at in (2, 3):
            machine.objects[at][:] = other.subject.bytes_of(at - 2)
            machine.subject.bytes_of(at)[:] = machine.objects[at]
        machine.retrieve(ids=ids_of(machine, 2, 2), objects=[2, 3], skip=0)
    return coverage.checks


def _not_pinned(config: Config, _: float) -> Counter[str]:
    """Memory that a GPU cannot reach is refused, not treated as pinned (G9)."""
    coverage = Coverage(PROPERTIES)
    machine = TransferMachine(config, coverage)
    subject, answer = machine.subject, ""
    made = [HostObject.allocate(subject.layout) for _ in range(2)]
    try:
        subject.transfer.store(machine.ids_of(ids_of(machine, 2, 0)), made)
    except ValueError as error:
        answer = str(error)
    written = any(bool(each.raw.any()) for each in made)
    coverage.check(
        "wrong_arguments_move_nothing",
        answer == "object 0 is not in pinned memory" and not written and machine.unchanged(),
        lambda: f"an object that is not pinned is answered by {answer!r}",
    )
    return coverage.checks


def _far(config: Config, _: float) -> Counter[str]:
    """Pages further than 2 GiB from the start of their layer, and planes as far from each other."""
    device = torch.device(config["device"])
    layer = torch.zeros(FAR, dtype=torch.bfloat16, device=device)
    groups = layer_groups([layer], hint=Hint(layout="kv-nhd"))
    layout = groups.layout(tokens=4 * FAR[2])
    staging = Staging(layout, slots=2, device=device)
    last, coverage = FAR[1] - 1, Coverage(PROPERTIES)
    ids, back = [last, 2, last - 1, last // 2], [1, last - 3, last - 2, 3]
    for large in (1 << 40, 1):
        layer[:, ids] = torch.randn((2, 4, *FAR[2:]), device=device).bfloat16()
        layer[:, back] = 0
        transfer = Transfer(groups, layout, staging=staging, large_page=large)
        made = HostObject.allocate(layout, pinned=True)
        transfer.store([ids], [made]).synchronize()
        transfer.retrieve([back], [made]).synchronize()
        for name, found in (
            ("stored_bytes_equal_the_pages", made.get_tensor(0)[:, 0].to(device)),
            ("retrieved_bytes_reach_their_blocks", layer[:, back].flatten(1, 2)),
        ):
            same = torch.equal(found, layer[:, ids].flatten(1, 2))
            coverage.check(name, same, lambda: "bytes beyond 2 GiB are not those of the pages")
    return coverage.checks


def _random(config: Config, deadline: float) -> Counter[str]:
    themes = tuple(_on(config["device"], theme) for theme in PROFILES)
    budget = settings(
        max_examples=HISTORIES, stateful_step_count=STEPS, phases=[Phase.generate],
        database=None, deadline=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    end = time.monotonic() + deadline - time.time()
    seen = explore(SUITE._replace(profiles=themes), budget, seed=config["seed"], deadline=end)
    if seen.died is not None:
        raise Violation("no crash", "", str(seen.died))
    if seen.counterexample:
        violation, history = seen.counterexample
        raise Violation(violation.property, "", f"{violation.sentence}\n{_as_json(history)}")
    return Counter(seen.checks) + Counter({"histories": seen.test_cases})


def _on(device: str, theme: Callable[[Draw], Config]) -> Callable[[Draw], Config]:
    def drawn(draw: Draw) -> Config:
        config = theme(draw)
        return config | {"device": device, "slots": max(1, config["slots"])}

    return drawn


def _as_json(history: History) -> str:
    calls = [[each.verb, each.arguments] for each in history.operations]
    return json.dumps({"config": history.config, "operations": calls})


def shuffled(found: list[Job], seed: int) -> list[Job]:
    """Return jobs with an end in an order that spreads the long ones, then the others."""
    ended = [job for job in found if job.kind != "random"]
    random.Random(seed).shuffle(ended)
    return ended + [job for job in found if job.kind == "random"]


_WAYS: dict[str, Callable[[Config, float], Counter[str]]] = {
    "model": _round_trip,
    "model late": _round_trip,
    "same bytes": _same_bytes,
    "widths": _round_trip,
    "deaf": _deaf,
    "far": _far,
    "not pinned": _not_pinned,
    "cache server": lambda config, _: through_a_server(config),
    "two processes": lambda config, _: in_two_processes(config),
    "random": _random,
}
