"""What `kvproof serve` serves: the symbolic model, or a Hugging Face folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvproof.harness.cli.arguments.serve import DEFAULT_MEMORY, ServeOptions
from kvproof.harness.errors import UsageError
from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.tiers.config import check_remote, read_size

if TYPE_CHECKING:
    from kvproof.reference.server.language.language import Language
    from kvproof.reference.tiers.remote import OnMap, RemoteObjects

SYMBOLIC = "symbolic"
SYMBOLIC_BLOCKS = 4097
SYMBOLIC_LENGTH = 4096
SYMBOLIC_EXPERTS = (8, 2, 2)
"""Experts to choose from, layers, experts per token."""
DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")
_CACHE_OPTIONS = (
    "block_size", "kernel_block_size", "enable_prefix_caching", "hash_algorithm",
    "hit_rate_window", "cache_partial_blocks", "state_pool", "max_requests",
    "prefix_cache_state_budget", "prefix_cache_decode_state_interval", "return_routed_experts",
    "require_cached_experts",
)  # fmt: skip


class Built(NamedTuple):
    """An engine, the language in front of its model, and the store below its tiers."""

    engine: Engine
    language: Language
    remote: RemoteObjects | None = None
    notes: tuple[str, ...] = ()
    """Lines about the model, for the start."""

    def close(self) -> None:
        """Write the cache to the tiers below, then close their connections."""
        self.engine.close()
        if self.remote is not None:
            self.remote.close()


def symbolic(options: ServeOptions) -> Built:
    """Build the engine with the model that needs no package. Raises ConfigError."""
    from kvproof.reference.server.language.symbolic_text import SymbolicText

    wanted = options.return_routed_experts
    cache = options.pick(
        CacheConfig,
        num_blocks=options.num_blocks or SYMBOLIC_BLOCKS,
        experts=SYMBOLIC_EXPERTS if wanted else (0, 0, 0),
    )
    language = SymbolicText(cache, max_len=_length(options.max_model_len, SYMBOLIC_LENGTH))
    return _built(options, cache, language)


def _built(options: ServeOptions, cache: CacheConfig, language: Language) -> Built:
    config = options.pick(EngineConfig, cache=cache)
    if not options.remote:
        return Built(Engine(config, language.model), language)
    check_remote(options.host_tier, weights=options.weights)
    from kvproof.reference.tiers.remote import open_remote

    secret = options.remote_secret_file or ""
    on_map: OnMap | None = None
    if options.device.startswith("cuda"):
        from kvproof.reference.transfer.pinned import pin_if_possible

        on_map = pin_if_possible
    remote = open_remote(options.remote, weights=options.weights, secret_file=secret, on_map=on_map)
    return Built(Engine(config, language.model, remote=remote), language, remote)


def _length(given: int, default: int) -> int:
    if given and given < 2:
        raise ConfigError(
            f"max_model_len {given} must be a whole number, at least 2, for example 4096"
        )
    return given or default


def hugging_face(options: ServeOptions) -> Built:
    """Load a folder. Raises ConfigError, UnsupportedModel, UsageError for a missing package."""
    torch, transformers, loading, runner, served = _packages()
    transformers.utils.logging.disable_progress_bar()
    loaded = loading.load(
        options.model, dtype=_dtype(torch, options.dtype), device=_device(torch, options.device)
    )
    sizes = {name: getattr(options, name) for name in _CACHE_OPTIONS}
    count = options.num_blocks
    cache = runner.cache_config(loaded.model, num_blocks=count or 2, **sizes)
    if not count:
        size = served.block_bytes(loaded.model, cache)
        cache = replace(cache, num_blocks=_blocks(options.memory, size))
    language = served.HuggingFaceText(
        loaded,
        cache,
        Path(options.model),
        mode=options.mode,
        attention=options.attention,
        max_len=options.max_model_len,
    )
    return _built(options, cache, language)._replace(notes=loaded.notes)


def _packages() -> tuple[Any, ...]:
    try:
        import torch
        import transformers

        from kvproof.reference.model_runner import loading, runner
        from kvproof.reference.server.language import hugging_face
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
    size = read_size(memory, "memory")
    count = size // block_bytes
    if count < 2:
        raise ConfigError(
            f"memory {memory!r} must be at least two blocks of {block_bytes} bytes, "
            f"for example {DEFAULT_MEMORY}"
        )
    return count
