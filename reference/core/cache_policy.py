"""Whether a request may read and write the cache, decided once, with a reason (A1, A2)."""

from __future__ import annotations

from msgspec import Struct


class Access(Struct, frozen=True, gc=False):
    """A decision; `reason` is stable and appears in metrics and explanations."""

    read: bool
    write: bool
    reason: str


ALLOWED = Access(read=True, write=True, reason="allowed")
DISABLED = Access(read=False, write=False, reason="prefix caching is off")


def decide(
    *, enabled: bool, read: bool = True, store: bool = True, needs_every_token: bool = False
) -> Access:
    """Decide for one request.

    `needs_every_token`: prompt log-probabilities or hidden states are wanted, which a hit would
    leave out; such a request reads nothing but may write (A2).
    """
    if not enabled:
        return DISABLED
    if read and store and not needs_every_token:
        return ALLOWED
    wishes = {
        "needs every prompt token": needs_every_token,
        "asked not to read": not read,
        "asked not to store": not store,
    }
    reason = ", ".join(name for name, wished in wishes.items() if wished)
    return Access(read=read and not needs_every_token, write=store, reason=reason)
