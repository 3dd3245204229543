"""What `kvproof serve` serves: the symbolic model, or a Hugging Face folder."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.reference.config import CacheConfig, ConfigError
from kvproof.reference.engine import Engine
from kvproof.reference.engine_config import EngineConfig
from kvproof.reference.tiers.config import read_size

if TYPE_CHECKING:
    from kvproof.reference.server.language import Language

SYMBOLIC = "symbolic"
SYMBOLIC_BLOCKS = 4097
SYMBOLIC_LENGTH = 4096
SYMBOLIC_EXPERTS = (8, 2, 2)
"""Experts to choose from, layers, experts per token."""
DEFAULT_MEMORY = "2GiB"
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
_CACHE_OPTIONS = (
    "block_size", "kernel_block_size", "enable_prefix_caching", "hash_algorithm",
    "hit_rate_window", "cache_partial_blocks", "state_pool", "max_requests",
    "prefix_cache_state_budget", "prefix_cache_decode_state_interval", "return_routed_experts",
    "require_cached_experts",
)  # fmt: skip


class Built(NamedTuple):
    """An engine, and the language in front of its model."""

    engine: Engine
    language: Language


def pick(kind: Any, given: dict[str, Any], **more: Any) -> Any:
    """Build a configuration from the options that are called like its fields."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in given.items() if name in names} | more)


def symbolic(given: dict[str, Any]) -> Built:
    """Build the engine with the model that needs no package. Raises ConfigError."""
    from kvproof.reference.server.symbolic_text import SymbolicText

    wanted = given["return_routed_experts"]
    cache = pick(
        CacheConfig,
        given,
        num_blocks=given["num_blocks"] or SYMBOLIC_BLOCKS,
        experts=SYMBOLIC_EXPERTS if wanted else (0, 0, 0),
    )
    language = SymbolicText(cache, max_len=_length(given["max_model_len"], SYMBOLIC_LENGTH))
    return Built(Engine(pick(EngineConfig, given, cache=cache), language.model), language)


def _length(given: int, default: int) -> int:
    if given and given < 2:
        raise ConfigError(
            f"max_model_len {given} must be a whole number, at least 2, for example 4096"
        )
    return given or default


def hugging_face(given: dict[str, Any]) -> Built:
    """Load a folder. Raises ConfigError, UnsupportedModel, UsageError for a missing package."""
    torch, transformers, loading, runner, served = _packages()
    transformers.utils.logging.disable_progress_bar()
    loaded = loading.load(
        given["model"], dtype=_dtype(torch, given["dtype"]), device=_device(torch, given["device"])
    )
    options = {name: given[name] for name in _CACHE_OPTIONS}
    count = given["num_blocks"]
    cache = runner.cache_config(loaded.model, num_blocks=count or 2, **options)
    if not count:
        size = served.block_bytes(loaded.model, cache)
        cache = replace(cache, num_blocks=_blocks(given["memory"], size))
    language = served.HuggingFaceText(
        loaded,
        cache,
        Path(given["model"]),
        mode=given["mode"],
        attention=given["attention"],
        max_len=given["max_model_len"],
    )
    return Built(Engine(pick(EngineConfig, given, cache=cache), language.model), language)


def _packages() -> tuple[Any, ...]:
    try:
        import torch
        import transformers

        from kvproof.reference.model_runner import loading, runner
        from kvproof.reference.server import hugging_face
    except ImportError as error:
        raise UsageError(
            f"a Hugging Face model needs a package that is not installed: {error.name or error}",
            "pip install 'kvproof[serve,hf]', or try --model symbolic",
        ) from error
    return torch, transformers, loading, runner, hugging_face


def _dtype(torch: Any, name: str) -> Any:
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} must be one of {', '.join(DTYPES)}, for example auto")
    return name if name == "auto" else getattr(torch, name)


def _device(torch: Any, name: str) -> Any:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"device {name!r} cannot be used: {reason}; for example cpu") from None


def _blocks(memory: str, block_bytes: int) -> int:
    """Return how many blocks memory holds, the null block included."""
    size = read_size(memory, "memory")
    count = size // block_bytes
    if count < 2:
        raise ConfigError(
            f"memory {memory!r} must be at least two blocks of {block_bytes} bytes, "
            f"for example {DEFAULT_MEMORY}"
        )
    return count
