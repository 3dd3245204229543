"""Suite `settings`: any kernel block size with any block size, and models of every kind.

Configurations are accepted or refused; the machine spells the rule out.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.layer_spec import PlanError
from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.config import model_fields, options
from kvproof.suites.reference.config import properties as seen
from kvproof.suites.reference.config.properties import PROPERTIES

REWRITING = ("llada", "llada_moe", "dream", "sdar", "diffusion_gemma")
"""Diffusion language models: they fill masks in any order, and may revise tokens."""
WRITING_ONCE = ("llama", "qwen3", "mistral", "gemma2", "glm", "cohere")
UNKNOWN_NAMES = ("dreamer", "sd", "not_a_model")
"""Names that begin or end like known ones, and are in no table."""

_SHAPE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
_WHY = "tokens change after they were written"


class ConfigMachine:
    def __init__(self, _: Config, coverage: Coverage) -> None:
        self._coverage = coverage

    def apply(self, verb: str, **arguments: object) -> object:
        """Configure a cache or read a model; returns the reason of a refusal."""
        verbs = {
            "configure": self._configure, "read": self._read, "option": self._option,
            "field": self._field,
        }  # fmt: skip
        return verbs[verb](**arguments)  # type: ignore[operator]  # each has keywords of its own

    # --- K1 ---

    def _configure(self, *, block: int, kernel: int, group: bool) -> object:
        divides = kernel > 0 and block % kernel == 0
        self._cover_kernel(block, kernel, group=group)
        try:
            taken = _kernel_block_size(block, kernel, group=group)
        except ConfigError as error:
            words = str(error)
            said = words.partition("kernel_block_size ")[2]
            numbers = [int(number) for number in re.findall(r"-?\d+", said)]
            legal = [size for size in range(1, block + 1) if block % size == 0]
            self._kernel(not divides and numbers == [kernel, block, *legal], block, kernel, words)
            return words
        self._kernel(divides and taken == kernel, block, kernel, f"{taken} was taken")
        return taken

    def _cover_kernel(self, block: int, kernel: int, *, group: bool) -> None:
        self._coverage.event(seen.OF_A_GROUP, group)
        self._coverage.event(seen.NONE, kernel < 1)
        self._coverage.event(seen.LARGER, kernel > block)
        if 0 < kernel <= block:
            self._coverage.event(seen.ODD if block % kernel else seen.DIVIDES)

    def _kernel(self, ok: bool, block: int, kernel: int, words: str) -> None:  # noqa: FBT001 - the judged condition
        self._coverage.check(
            "kernel_block_sizes_divide_the_block_size",
            ok,
            lambda: f"block size {block}, kernel block size {kernel}: {words}",
        )

    # --- O1 ---

    def _option(self, *, record: str, name: str, at: int) -> object:
        option = options.Option(record, name)
        value = options.value_at(option, at)
        legal, words = option.range.takes(value), options.refused(option, value)
        border = at < len(option.range.borders())
        self._coverage.event((seen.TAKEN if legal else seen.REFUSED) if border else seen.TYPE)
        named = words.startswith(f"{name} {value!r} ")
        self._coverage.check(
            "options_are_taken_within_their_range",
            not words and option.given(value) == value if legal else named,
            lambda: f"{record}: {name} = {value!r}: {words or 'taken'}",
        )
        return words or "taken"

    def _field(self, *, family: str, name: str, at: int) -> object:
        value, legal = model_fields.values(family, name)[at]
        words = model_fields.refused(family, name, value)
        self._coverage.event(seen.FIELD if legal else seen.WRONG_FIELD)
        self._coverage.check(
            "counts_of_a_model_are_whole_and_positive",
            not words if legal else words.startswith(f"{name} {value!r} "),
            lambda: f"{family}: {name} = {value!r}: {words or 'taken'}",
        )
        return words or "taken"

    # --- A3 ---

    def _read(self, *, family: str, inside: bool) -> object:
        config: Config = {"model_type": family, **_SHAPE}
        if inside:
            config = {"model_type": "with_media", "text_config": config}
        rewrites, known = family in REWRITING, family in WRITING_ONCE
        self._coverage.event(seen.REWRITES, rewrites)
        self._coverage.event(seen.INSIDE, rewrites and inside)
        self._coverage.event(seen.WRITES_ONCE, known)
        self._coverage.event(seen.UNKNOWN, not (rewrites or known))
        words = ""
        try:
            read_model(config)
        except PlanError as error:
            words = str(error)
        self._coverage.check(
            "models_that_rewrite_tokens_are_refused",
            rewrites == (_WHY in words) and known == (not words) and (known or family in words),
            lambda: f"{family} is answered with {words!r}",
        )
        return words or "taken"


def _kernel_block_size(block: int, kernel: int, *, group: bool) -> int:
    """Return the kernel block size of the configured cache. Raises ConfigError."""
    if group:
        groups = (GroupConfig("full", block), GroupConfig("window", block, 8, kernel))
        return CacheConfig(8, groups=groups).layout.groups[1].kernel_size
    return CacheConfig(8, block, kernel_block_size=kernel).kernel_size


LARGEST = 96


def draw_config(_: Draw) -> Config:
    return {}


def draw_operation(_: ConfigMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw an option, a field, a model, or two sizes: half of the time one divides the other."""
    what = draw(st.integers(0, 4))
    if what == 4:
        return "field", model_fields.draw_field(draw)
    if what == 3:
        return "option", options.draw_option(draw)
    if not what:
        family = draw(st.sampled_from((*REWRITING, *WRITING_ONCE, *UNKNOWN_NAMES)))
        return "read", {"family": family, "inside": draw(st.booleans())}
    block, kernel = draw(st.integers(1, LARGEST)), draw(st.integers(-2, LARGEST))
    if kernel > 0 and draw(st.booleans()):
        block = kernel * draw(st.integers(1, 4))
    # 0 is the default: as large as the block
    return "configure", {"block": block, "kernel": kernel or -1, "group": draw(st.booleans())}


SUITE = ComponentSuite("settings", PROPERTIES, draw_config, ConfigMachine, draw_operation)
