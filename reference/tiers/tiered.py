"""A cache manager with tiers below: before it admits, what they hold comes back (C8)."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.reference.cache.cache_manager import NO_SPANS, CacheManager
from kvproof.reference.cache.request_state import Admission, Live, Refusal
from kvproof.reference.core.cache_policy import ALLOWED, Access
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, Namespace, Span, Tokens
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.stores.object_store import ObjectStore
from kvproof.reference.tiers.tiers import Tiers


class TieredManager(CacheManager):
    """A manager whose hits are those of index and tiers together.

    A subclass, because everything but admission is the manager's own, at its own cost; a manager
    without tiers is none of these and pays nothing.
    """

    def __init__(
        self, config: EngineConfig, mover: object, *, remote: ObjectStore | None = None
    ) -> None:
        """See `Tiers`."""
        super().__init__(config.cache)
        self.tiers = Tiers(config, self, mover, remote=remote)

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
        request = Live(request_id, tokens, namespace, spans, self.config.layout.unit)
        request.access = access
        self.check_admission(request, compute)  # before anything is brought back
        sources = self.tiers.prepare(request, compute)
        if isinstance(sources, Refusal):
            return sources
        answer = super().admit(
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

    def lookup(
        self,
        tokens: Tokens,
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = NO_SPANS,
    ) -> int:
        """See `CacheManager.lookup`; what tiers hold counts as if it found room (T1)."""
        here = super().lookup(tokens, namespace=namespace, spans=spans)
        request = Live("", tokens, namespace, spans, self.config.layout.unit)
        return max(here, self.tiers.reach(request))
