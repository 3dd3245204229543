"""The reference's native life of a request, for benchmarks (`target.Cycle`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from kvproof.harness.contract.target import TargetConfig
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Tokens


def native_groups(config: TargetConfig) -> tuple[GroupConfig, ...]:
    """The groups as the reference takes them; nothing for one group of full attention."""
    names = [each.name for each in fields(GroupConfig)]
    return tuple(
        GroupConfig(**{name: getattr(group, name) for name in names}) for group in config.groups
    )


_PROMPTS = {"": "int32 bytes", "lists": "list of int", "buffer": "int32 buffer"}
"""Variant -> the form of its prompts."""


class _OneGroup:
    tables = "Admission.table"

    def __init__(self, config: TargetConfig, variant: str) -> None:
        self._variant = variant
        self.given = {
            "prompt": _PROMPTS.get(variant, _PROMPTS[""]),
            "identity": "the tokens themselves",
            "match, room, registration": "begin_step, admit, end_step",
            "tables": self.tables,
            "end": "release",
            "in its favour": "nothing",
        }
        self.manager = CacheManager(
            CacheConfig(
                num_blocks=config.num_blocks,
                block_size=config.block_size,
                groups=native_groups(config),
            )
        )

    def prepare(self, tokens: memoryview) -> Tokens:
        """Bytes; a list for the variant `lists`, the int32 buffer itself for `buffer`."""
        if self._variant == "buffer":
            return tokens
        return tokens.tolist() if self._variant == "lists" else tokens.tobytes()

    def run(self, index: int, prompt: Tokens) -> tuple[int, Sequence[object], Sequence[int]]:
        """Admit, end the step, release."""
        manager, request_id = self.manager, str(index)
        step = manager.begin_step()
        admission = _admitted(request_id, manager.admit(request_id, prompt))
        manager.end_step(step)
        return admission.hit, admission.table, manager.release(request_id)

    def lookup(self, prompt: Tokens) -> int:
        """Tokens that a request would hit."""
        return self.manager.lookup(prompt)

    def cached_blocks(self) -> int:
        """Cached blocks without a holder."""
        return self.manager.usage().cached


class _Groups(_OneGroup):
    serves_groups = True
    tables = "tables: all groups and the state"

    def run(self, index: int, prompt: Tokens) -> tuple[int, Sequence[object], Sequence[int]]:
        """Admit, end the step, read the tables of all groups, release."""
        manager, request_id = self.manager, str(index)
        step = manager.begin_step()
        admission = _admitted(request_id, manager.admit(request_id, prompt))
        manager.end_step(step)
        return admission.hit, manager.tables(request_id), manager.release(request_id)


def _admitted(request_id: str, answer: Admission | Refusal) -> Admission:
    if isinstance(answer, Refusal):
        raise RuntimeError(f"request {request_id} was refused: {answer}")
    return answer


def make_cycle(config: TargetConfig, variant: str = "") -> _OneGroup:
    """Build the native cycle; see `prepare` for the variants."""
    return (_Groups if config.groups else _OneGroup)(config, variant)
