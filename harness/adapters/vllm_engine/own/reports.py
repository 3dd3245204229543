"""Reports of an own connector about copies: late, as from the slowest of several workers, or bad.

An end that the class reports is passed on when a transfer of the device ends, after the drawn
number of steps. Of an asynchronous load drawn blocks are lost and reported, as if another worker
had failed. The device gets the failures that the class reports itself ahead of the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproof.harness.whole_engine.failed_loads import LOST
from kvproof.harness.whole_engine.transfers import Transfer


@dataclass
class _Held:
    """An end that has not been passed on."""

    name: str
    transfer: Transfer
    lost: Sequence[int]


class Reports:
    """Both halves of one engine's connector."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self._loads: dict[str, Sequence[int]] = {}
        """Request -> blocks of its last load."""
        self._filled: dict[int, str] = {}
        """Block -> the request whose load filled it last."""
        self._found: dict[str, int] = {}
        """Request -> tokens that were computed when the class was asked."""
        self._receiving: list[_Held] = []
        self._sending: list[_Held] = []
        self._errors: set[int] = set()
        self._promised = False
        """Whether a load was scheduled since the last step of the worker."""
        self._injects = True
        """Whether loads fail as on another worker; else the class loses content by itself."""

    # scheduler

    def asked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Note where a load of a request begins."""

        def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> Any:
            self._found[request.request_id] = num_computed_tokens
            return call(request, num_computed_tokens)

        return get_num_new_matched_tokens

    def allocated(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Note the blocks of a load."""

        def update_state_after_alloc(request: Any, blocks: Any, num_external_tokens: int) -> Any:
            if num_external_tokens:
                size = self._running.config.block_size
                first = self._found.get(request.request_id, 0)
                ids = blocks.get_block_ids()[0]
                last = -(-(first + num_external_tokens) // size)
                self._loads[request.request_id] = filled = list(ids[first // size : last])
                self._filled.update(dict.fromkeys(filled, request.request_id))
                self._promised = True
            return call(request, blocks, num_external_tokens)

        return update_state_after_alloc

    def told(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Note that the scheduler has worked on the failures of a step."""

        def update_connector_output(connector_output: Any) -> Any:
            self._device.losses.report(connector_output.invalid_block_ids or ())
            return call(connector_output)

        return update_connector_output

    # worker

    def loading(self, call: Callable[..., Any], errors: Callable[[], Any]) -> Callable[..., Any]:
        """Take failures from the class as soon as it knows them: a launch may come next."""

        def load(*given: Any, **more: Any) -> None:
            call(*given, **more)
            found = set(errors() or ())
            self._errors |= found
            for name, own in self._of(found).items():
                self._device.findings.saw("a load fails in part")
                self._device.losses.lose(name, own)

        return load

    def losing(self, load: Callable[..., Any], lose: Callable[..., Any]) -> Callable[..., Any]:
        """Let the class lose content that the scheduler has been promised, and report it itself."""
        self._injects = False

        def losing(*given: Any, **more: Any) -> None:
            promised, self._promised = self._promised, False
            if promised and self._device.losses.pattern:
                lose(self._device.losses.pick)
                self._device.findings.saw("a store loses content that was found")
            load(*given, **more)

        return losing

    def finished(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Hold back the ends that the class reports until their transfers end."""

        def get_transfer_results(finished_req_ids: Any) -> Any:
            ended = call(finished_req_ids)
            results = ended if hasattr(ended, "finished_sending") else _Ends(*ended)
            self._receiving += map(self._receive, sorted(results.finished_recving or ()))
            self._sending += map(self._send, sorted(results.finished_sending or ()))
            self._device.due_transfers()
            self._receiving, received = _divided(self._receiving)
            self._sending, sent = _divided(self._sending)
            self._errors.update(block for each in received for block in each.lost)
            names = {each.name for each in received}, {each.name for each in sent}
            if isinstance(results, _Ends):
                return names[1], names[0]
            return replace(results, finished_recving=names[0], finished_sending=names[1])

        return get_transfer_results

    def errors(self, call: Callable[[], Any]) -> Callable[[], set[int]]:
        """Return the failures that are to be reported now."""

        def get_block_ids_with_load_errors() -> set[int]:
            found = self._errors.union(call() or ())
            self._errors = set()
            for name in self._of(found):
                self._device.losses.requests.add(name)
            return found

        return get_block_ids_with_load_errors

    def _of(self, blocks: set[int]) -> dict[str, set[int]]:
        """Return request -> those of the blocks that its load is to fill."""
        found: dict[str, set[int]] = {}
        for block in blocks & self._filled.keys():
            found.setdefault(self._filled[block], set()).add(block)
        return found

    @property
    def _device(self) -> Any:
        return self._running.worker.device_of

    def _receive(self, name: str) -> _Held:
        device, blocks = self._device, self._loads.get(name, ())
        lost = [blocks[at] for at in device.losses.pick(len(blocks))] if self._injects else []
        device.findings.saw("a load fails in part", lost)
        if lost:
            device.losses.requests.add(name)
        for block in lost:
            device.memory.lose(block, LOST, epoch=device.epoch)
        return _Held(name, self._put_under_way(name, writes=blocks), lost)

    def _send(self, name: str) -> _Held:
        tables = self._running.owned(name)
        blocks = sorted({block for table in tables for block in table if block})
        return _Held(name, self._put_under_way(name, reads=blocks), ())

    def _put_under_way(self, name: str, **blocks: Sequence[int]) -> Transfer:
        transfer: Transfer = self._device.transfer(
            lambda: None, stream=f"report of {name}", ordered=False, **blocks
        )
        return transfer


@dataclass
class _Ends:
    """Ends as `get_finished` returns them, where a release has no record."""

    finished_sending: Any
    finished_recving: Any


def _divided(held: Sequence[_Held]) -> tuple[list[_Held], list[_Held]]:
    """Return those still under way, and those that have ended."""
    under_way = [each for each in held if not each.transfer.done]
    return under_way, [each for each in held if each.transfer.done]
