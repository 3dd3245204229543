"""Forwards of LMDeploy's model agent as launches of the shadow device.

The host's half is noted when the engine dispatches a batch: the order of its requests and the
blocks that each holds then. The device's half comes with the model's context: tables, lengths,
tokens, and the request of each row in `model_metas`, which the engine relays from step to step as
it does for models that see. One queue orders all launches, so each is executed at once; that a
result is late shows in its event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvproof.harness.adapters.lmdeploy_engine.matches import Matches
from kvproof.harness.contract.whole_engine import Reads, Row, Slots
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import IllegalAccess
from kvproof.harness.whole_engine.memory import Pool

REQUEST = "request"
"""Key of a row's request in its meta."""


@dataclass
class Dispatch:
    """A batch as the host sends it."""

    requests: Sequence[str]
    """Requests in the order of rows."""
    owned: Mapping[str, list[int]]
    """Request -> blocks."""
    samples: bool
    """It answers; False: a chunk of a prompt that is not the last one."""
    fresh: bool
    """Its rows begin: requests were admitted, or resumed."""


@dataclass
class Launches:
    """The forwards of one engine."""

    device: ShadowDevice
    names: Mapping[int, str]
    """Session -> request."""
    tables: Any
    """The block manager."""
    matches: Matches
    waiting: deque[Dispatch] = field(default_factory=deque)
    """Sent, and not yet executed."""
    dispatched: int = 0
    returned: int = 0
    """Batches whose result the host has."""
    polls: int = 0
    """How often the host has asked for a result that was not there."""

    def attach(self, engine_loop: Any) -> None:
        """Follow the inputs that an engine's loop makes and the results that it takes."""
        maker, executor = engine_loop.inputs_maker, engine_loop.executor
        make, get = maker._make_forward_inputs, executor.get_output_async
        whole, chunk = maker.create_model_inputs, maker.create_model_inputs_long_context

        def made(*given: Any, **options: Any) -> Any:
            inputs = make(*given, **options)
            if inputs is not None:
                self._note(inputs)
            return inputs

        async def got(*given: Any, **options: Any) -> Any:
            output = await get(*given, **options)
            self.returned += 1
            return output

        maker._make_forward_inputs, executor.get_output_async = made, got
        maker.create_model_inputs = lambda seqs, *given, **options: self._named(
            whole(seqs, *given, **options), seqs
        )
        maker.create_model_inputs_long_context = lambda seq, *given, **options: self._named(
            chunk(seq, *given, **options), [seq]
        )

    def _named(self, inputs: Any, seqs: Sequence[Any]) -> Any:
        """Put the request of each row into the inputs."""
        inputs.model_metas = [{REQUEST: self.names[seq.session_id]} for seq in seqs]
        return inputs

    def _note(self, forward: Mapping[str, Any]) -> None:
        seqs, inputs = forward["running"], forward["inputs"]
        requests = [self.names[seq.session_id] for seq in seqs]
        owned = [self.tables.get_block_table(seq).tolist() for seq in seqs]
        middle = inputs is not None and inputs.is_chunk and not inputs.is_last_chunk
        begins = inputs is not None and (not inputs.is_chunk or inputs.is_first_chunk)
        pairs = dict(zip(requests, owned))  # noqa: B905 - equal by make
        self.waiting.append(Dispatch(requests, pairs, not middle, bool(begins)))
        self.matches.sent(seqs, self.device.submitted + len(self.waiting))
        self.dispatched += 1

    def launch(self, context: Any) -> list[int]:
        """Launch a batch; return a token for each of its tokens: that after a row is at its end."""
        dispatch = self.waiting.popleft()
        lengths, ends = context.q_seqlens.tolist(), context.kv_seqlens.tolist()
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = context.input_ids.flatten().tolist()
        where = context.position_ids.flatten().tolist()
        if len(tokens) != offsets[-1]:
            raise IllegalAccess(f"{len(tokens)} tokens are computed in rows of {lengths}")
        rows = []
        for index, meta in enumerate(self._metas(context, dispatch)):
            part = slice(int(offsets[index]), int(offsets[index + 1]))
            _check_positions(meta, where[part], ends[index])
            table = context.block_offsets[index].numpy().astype(np.int64)
            rows.append(self._row(meta, dispatch, tokens[part], ends[index], table))
        launch = self.device.launch(rows)
        self.device.complete(launch.number)
        answers = [0] * len(tokens)
        for end, answer in zip(offsets[1:], launch.answers or ()):  # noqa: B905 - equal by make
            answers[int(end) - 1] = answer[-1] if answer else 0
        return answers

    def _metas(self, context: Any, dispatch: Dispatch) -> list[str]:
        """Return the request of each row, as the engine has relayed it."""
        metas = context.model_metas or []
        if not len(metas) == len(context.q_seqlens) == len(dispatch.requests):
            raise IllegalAccess(
                f"a batch of {len(context.q_seqlens)} rows has {len(metas)} metas, and the "
                f"scheduler sent {len(dispatch.requests)} requests"
            )
        return [str(meta[REQUEST]) for meta in metas]

    def _row(
        self, name: str, dispatch: Dispatch, tokens: Sequence[int], end: int, table: Slots
    ) -> Row:
        start = end - len(tokens)
        pools = self.device.memory.pools
        owned = dispatch.owned.get(name, [])
        groups = tuple(Reads(table, self._writes(pool, table, start, end), owned) for pool in pools)
        return Row(
            request=name,
            start=start,
            tokens=tuple(tokens),
            drafts=0,
            samples=dispatch.samples,
            fresh=dispatch.fresh,
            device_start=False,
            groups=groups,
        )

    @staticmethod
    def _writes(pool: Pool, table: Slots, start: int, end: int) -> Slots:
        """Return the slots that a kernel fills: it derives them from table and lengths."""
        size = pool.kernel_block_size
        positions = np.arange(start, end)
        if len(table) * size < end:
            raise IllegalAccess(
                f"positions {start}..{end - 1} are written by a table of {len(table)} blocks"
            )
        slots: Slots = table[positions // size] * size + positions % size
        last = pool.layers[0].words.shape[0] * size
        if len(slots) and not 0 <= slots.min() <= slots.max() < last:
            raise IllegalAccess(f"a batch has slots {slots.tolist()}, the pool has {last}")
        return slots

    def now(self) -> int:
        """Return the device's step."""
        return self.device.tick

    def has_ended(self, tick: int) -> bool:
        """Tell whether an event of a step has ended: `lag` steps later."""
        ended = self.device.tick >= tick + self.device.lag
        self.polls += not ended
        return ended


def _check_positions(name: str, positions: Sequence[int], end: int) -> None:
    if not positions or [*positions] != [*range(end - len(positions), end)]:
        raise IllegalAccess(
            f"{name} computes positions {positions[:4]} and on, its length is {end}"
        )
