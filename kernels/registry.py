"""Registry of kernels and providers, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

from kvproof.kernels.spec import Kernel, Provider

KERNELS = (
    "paged_decode",
    "paged_prefill",
    "kv_fill",
    "block_expand",
    "block_transfer",
    "host_transfer",
    "state_copy",
    "sparse_latent",
    "indexer",
    "indexer_fill",
)

GROUP = "kvproof.kernels"
"""Entry points of this group are functions without arguments that return a `Provider`."""


def kernel(name: str) -> Kernel:
    """Return the kernel of a name in `KERNELS`."""
    found: Kernel = import_module(f"kvproof.kernels.{name}.sweep").KERNEL
    return found


def provider_names() -> list[str]:
    """Names of the providers in installed packages."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def provider(name: str) -> Provider:
    """A provider by its entry point, or by `module:function`.

    Raises LookupError without such an entry point; ImportError or AttributeError if
    `module:function` does not exist, or the engine is missing.
    """
    if ":" in name:
        module, _, function = name.partition(":")
        return _made(getattr(import_module(module), function))
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found))
        raise LookupError(f"there is no kernel provider {name!r}; installed are {known}")
    return _made(found[name].load())


def _made(factory: Callable[[], Provider]) -> Provider:
    return factory()
