"""vLLM's EngineCore over its own GPU worker: a new core for each history, one card for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kvproof.harness.adapters.vllm_engine.engine import VllmEngine
from kvproof.harness.adapters.vllm_engine.engine_settings import engine_settings
from kvproof.harness.adapters.vllm_engine.requests import core_request
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.adapters.vllm_live import answers, faults, models, tiers
from kvproof.harness.adapters.vllm_live.traits import EAGER, GRAPHS
from kvproof.harness.adapters.vllm_live.watch import COLD
from kvproof.harness.adapters.vllm_live.worker import STANDING, LiveWorker
from kvproof.harness.contract.whole_engine import EngineConfig, Output, Refused
from kvproof.harness.whole_engine.causes import READS
from kvproof.harness.whole_engine.driver import ANSWERS
from kvproof.harness.whole_engine.findings import Findings

REPEATED = 3
"""Requests that the cold engine answers a second time, each alone."""
_KV_BYTES = 1 << 28
_CAPTURED = [1, 2, 4, 8, 16, 32]
"""Tokens of the steps that are captured, without a compiler."""
LAST: list[LiveEngine] = []
"""The engine of the last history."""
_COLD: dict[models.Kind, _Cold] = {}


def standing(config: EngineConfig) -> None:
    """Start the workers of a configuration, unless they are there. Raises Refused."""
    models.check(config)
    for each in (models.cold_kind(config), models.kind_of(config)):
        if each not in STANDING:
            LiveWorker.key = each
            _COLD[each] = _Cold(_largest(each))
    LiveWorker.key = models.kind_of(config)


def _largest(kind: models.Kind) -> EngineConfig:
    return EngineConfig(
        blocks=models.BLOCKS + models.COLD_BLOCKS, groups=kind[0], runner="v2",
        token_budget=models.TOKENS, max_requests=models.REQUESTS, max_length=models.LONGEST,
        caching=False, events=False, settings={GRAPHS: kind[1]},
    )  # fmt: skip


def _settings(config: EngineConfig, **more: Any) -> Any:
    """Return vLLM's own configuration, of an engine on a card."""
    groups, mode = models.kind_of(config)
    captured = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": _CAPTURED}
    return engine_settings(
        replace(config, connector="", tier={}),
        model=models.model_folder(groups),
        worker_cls="kvproof.harness.adapters.vllm_live.worker.LiveWorker",
        dtype=models.model_of(groups)["torch_dtype"],
        seed=0,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=_KV_BYTES,
        enforce_eager=mode == EAGER,
        compilation_config={} if mode == EAGER else captured,
        **more,
    )


def start(config: EngineConfig, findings: Findings) -> LiveEngine:
    """Start an engine over the standing worker. Raises Refused where vLLM refuses."""
    RUNNING.config, RUNNING.findings, RUNNING.tier, RUNNING.given_up = config, findings, None, {}
    more: dict[str, Any] = {}
    if config.connector:
        size = STANDING[models.kind_of(config)].bytes_of_a_block()
        more["kv_transfer_config"] = tiers.settings(config.connector, config.tier, size)
    try:
        return LiveEngine(config, _settings(config, **more))
    except ValueError as error:
        raise Refused(" ".join(str(error).split())) from error


class LiveEngine(VllmEngine):
    """One EngineCore in this process, over the card."""

    def __init__(self, config: EngineConfig, settings: Any) -> None:
        first = STANDING[models.kind_of(config)]
        first.clear()
        self.watch = first.watch
        self.watch.begin(RUNNING.findings, self._owned, config.seed)
        self.watch.fault = faults.FAULTS[faults.CHOSEN]() if faults.CHOSEN else None
        super().__init__(config, settings)
        self.worker.note_copies()
        self._cold, self._wrong, self._tables = _COLD[models.cold_kind(config)], 0, ""
        self._numbers = models.model_of(models.kind_of(config)[0])["torch_dtype"]
        self._judged: list[answers.Judged] = []
        LAST[:] = [self]

    def _use(self) -> None:
        """There is one."""

    def step(self) -> list[Output]:
        """Run the engine's own step, and look at the counts of the canary that have arrived."""
        worked = self.device.worked
        outputs = super().step()
        if self.device.worked == worked:
            _wait()  # copies alone are under way
        self._check_content(wait=False)
        return outputs

    def idle(self) -> bool:
        """Tell whether nothing is left; then wait for the card, and judge the answers."""
        if not super().idle():
            return False
        self._check_content(wait=True)
        self._check_answers()
        return True

    def verdicts(self) -> Mapping[str, Any]:
        """Return the results of each oracle for the history."""
        self._finish()
        content = self.watch.seen(wait=True)
        return {
            "tables": self._tables,
            "content": sum(each.wrong for each in content),
            "slots": sum(each.slots for each in content),
            "answers": [list(each) for each in self._judged],
            "struck": self.watch.fault.struck if self.watch.fault else 0,
        }

    def _finish(self) -> None:
        """Let every oracle judge what ran, also where an earlier one has ended the history."""
        findings = self.device.findings
        if findings.wrong is not None and findings.wrong.sentence.startswith(_OTHERS):
            findings.wrong = None
        self.device.complete(self.device.submitted)
        self._tables = findings.wrong.sentence if findings.wrong else ""
        _wait()
        self._check_answers()

    def _check_content(self, *, wait: bool) -> None:
        seen = self.watch.seen(wait=wait)
        bad = [each for each in seen if each.wrong]
        wrong = sum(each.wrong for each in bad)
        if wrong == self._wrong:
            return
        self._wrong = wrong
        first = min(bad, key=lambda each: each.step)
        name = self.watch.read_by(first)
        self.device.complete(self.device.submitted)  # tables say more about the same read
        if self.device.requests[name].struck:
            return
        self.device.findings.check(
            READS,
            False,  # noqa: FBT003 - the condition of a check
            lambda: (
                f"{_CONTENT} {name} reads position {first.position}, which holds other content; "
                f"{wrong} slots of {sum(each.slots for each in seen)}"
            ),
            facts={"request": name},
        )

    def _check_answers(self) -> None:
        served = self.watch.logits.take()
        served = {name: rows for name, rows in served.items() if not self._struck(name)}
        if not served:
            return
        requests = self.device.requests
        first = {name: len(requests[name].request.prompt) - 1 for name in served}
        cold, again = self._cold.compute(sorted(served), self.device)
        numbers = getattr(torch, self._numbers)
        judged = answers.judge(served, cold, again, first, resolution=torch.finfo(numbers).eps)
        self._judged.append(judged)
        self.device.findings.saw(f"answers against a cold engine: {judged.verdict}")
        if judged.verdict != "inconclusive":
            self.device.findings.check(
                ANSWERS,
                judged.verdict == "pass",
                lambda: f"{_ANSWERS} {judged.sentence}",
                facts={"request": judged.request} if judged.request else {},
            )

    def _struck(self, name: str) -> bool:
        own = self.device.requests[name]
        return bool(own.struck or own.load_failed)


_CONTENT, _ANSWERS = "by the canary:", "by logits:"
_OTHERS = (_CONTENT, _ANSWERS)


class _Cold:
    """A core without a cache over an eager worker, in blocks that no history has."""

    def __init__(self, config: EngineConfig) -> None:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor.abstract import Executor

        RUNNING.config = config
        settings = _settings(config)
        self.core = EngineCore(settings, Executor.get_class(settings), False)  # noqa: FBT003 - the engine's signature
        pool = self.core.scheduler.kv_cache_manager.block_pool
        taken = [each.block_id for each in pool.get_new_blocks(models.BLOCKS - 1)]
        assert max(taken) < models.BLOCKS, "the first blocks are those of histories"
        self._watch = STANDING[models.kind_of(config)].watch

    def compute(self, names: list[str], device: Any) -> tuple[answers.Rows, answers.Rows]:
        """Answer requests in small company, and some of them again, each alone."""
        with self._watch.cold(device):
            few = models.REQUESTS // 2
            groups = [names[at : at + few] for at in range(0, len(names), few)]
            cold = self._run(groups, device)
            again = self._run([[name] for name in names[:REPEATED]], device)
        return cold, again

    def _run(self, groups: list[list[str]], device: Any) -> answers.Rows:
        for group in groups:
            for name in group:
                request = device.requests[name].request
                again = replace(request, id=f"{COLD}{name}", priority=0)
                added = core_request(again, arrival=0.0)
                self.core.add_request(*self.core.preprocess_add_request(added))
            while self.core.scheduler.has_requests() or self.core.batch_queue:
                _, executed = self.core.step_fn()
                self.core.post_step(executed)
        self._watch.forget(COLD)
        found = self._watch.logits.take()
        return {name.removeprefix(COLD): rows for name, rows in found.items()}


def _wait() -> None:
    torch.cuda.synchronize()
