"""Registry of kernels and providers, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import resolve_name

from kvproof.kernels.entry_points import Offer, offers, usable, why_not
from kvproof.kernels.spec import Kernel, Provider

KERNELS = (
    "paged_decode",
    "paged_prefill",
    "tree_attention",
    "shared_prefix",
    "part_merge",
    "kv_fill",
    "block_expand",
    "block_transfer",
    "host_transfer",
    "state_copy",
    "state_step",
    "sparse_latent",
    "latent_fill",
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
    return sorted(usable(offers(GROUP)))


def unusable_providers() -> list[Offer]:
    """Return offers of packages that cannot be providers, with the reason."""
    return [each for each in offers(GROUP) if each.problem]


def provider(name: str) -> Provider:
    """A provider by its entry point, or by `module:function`.

    Raises LookupError without such an entry point; ImportError or AttributeError if
    `module:function` does not exist, or the engine is missing.
    """
    if ":" in name:
        return _made(resolve_name(name))
    found = offers(GROUP)
    named = usable(found)
    if name not in named:
        reason = why_not(found, name) or f"installed are {', '.join(sorted(named))}"
        raise LookupError(f"there is no kernel provider {name!r}; {reason}")
    return _made(resolve_name(named[name].factory))


def _made(factory: Callable[[], Provider]) -> Provider:
    return factory()
