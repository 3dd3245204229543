"""A cache manager with tiers below: before it admits, what they hold comes back (C8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from kvproof.reference.access import ALLOWED, Access
from kvproof.reference.cache_manager import NO_SPANS, CacheManager
from kvproof.reference.identity import DEFAULT_NAMESPACE, Namespace, Span, Tokens
from kvproof.reference.requests import Admission, Live, Refusal
from kvproof.reference.tiers.tiers import Tiers


class Tiered:
    """Answers like the manager behind it; a manager without tiers pays nothing."""

    def __init__(self, manager: CacheManager, tiers: Tiers) -> None:
        self.manager = manager
        self.tiers = tiers

    def __getattr__(self, name: str) -> Any:
        """Everything but admission is the manager's own."""
        return getattr(self.manager, name)

    @property
    def as_manager(self) -> CacheManager:
        """The same object, for those who ask for a manager and call what a manager has."""
        return cast("CacheManager", self)

    def admit(
        self,
        request_id: str,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
        compute: int | None = None,
        access: Access = ALLOWED,
        resumed: bool = False,
    ) -> Admission | Refusal:
        """See `CacheManager.admit`; refused with `loading` while objects are on their way."""
        request = Live(request_id, tokens, namespace, spans, self.manager.config.layout.unit)
        request.access = access
        sources = self.tiers.prepare(request, compute)
        if isinstance(sources, Refusal):
            return sources
        answer = self.manager.admit(
            request_id,
            request.tokens,
            namespace=namespace,
            spans=spans,
            compute=compute,
            access=access,
            resumed=resumed,
        )
        if isinstance(answer, Admission):
            self.tiers.admitted(request_id, sources, resumed=resumed)
        return answer
