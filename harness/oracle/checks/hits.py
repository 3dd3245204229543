"""The properties of a hit in a cache of several groups: valid in each, and none of it by luck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.harness.oracle.longest_hit import Lack
from kvproof.harness.oracle.request_state import NULL_BLOCK, Live
from kvproof.harness.oracle.violation import BRUTE_FORCE, INVARIANT, Violation

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

_IN_EVERY_GROUP = "hits_are_valid_in_every_group"

_BROKEN = {
    "span": "hits_never_end_inside_a_span",
    "state": "a_recurrent_hit_needs_a_checkpoint",
    "draft": "draft_groups_cost_one_unit",
    "experts": "hits_stop_before_missing_experts",
}
"""What a hit lacks -> the property that says so; `hits_are_valid_in_every_group` for the rest."""


class HitRules:
    """Judges for one session whether what it hit was there in every group."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout
        self._check = session.check
        self._apply = [
            name
            for name, applies in (
                ("hits_never_end_inside_a_span", session.profile.span_clamp),
                ("a_recurrent_hit_needs_a_checkpoint", self._layout.states),
                ("draft_groups_cost_one_unit", any(g.draft for g in self._layout.groups)),
                ("hits_stop_before_missing_experts", session.config.require_experts),
                (_IN_EVERY_GROUP, not self._layout.single),
            )
            if applies
        ]

    def valid(self, live: Live, hit: int) -> None:
        """A hit has what each group, the spans and the experts need at exactly its length (X1)."""
        session, limit = self._session, len(live.request.tokens) - 1
        if not self._apply:
            return
        session.checks.update(self._apply)
        lack = session.reuse.lack(live.prints, hit, limit, live.request.spans)
        if lack is None and not self._layout.single:
            self._handed_out(live, hit)
        if lack is None or (self._layout.single and lack.why in ("full", "grain")):
            return
        prop = self._property(live, lack)
        self._check(
            prop,
            INVARIANT if prop == "hits_never_end_inside_a_span" else BRUTE_FORCE,
            ok=False,
            sentence=lambda: f"request {live.request.id} hit {hit} tokens, but {self._said(lack)}",
        )

    def _handed_out(self, live: Live, hit: int) -> None:
        """What a group sees at the end of a hit was there: it is in the group's table too."""
        for group in self._layout.attention:
            layers = self._layout.groups[group]
            seen = range(self._layout.first_block(group, hit), hit // layers.block_size)
            table = live.groups[group]
            holes = [i for i in seen if i < len(table) and table[i] == NULL_BLOCK]
            if holes:
                raise Violation(
                    _IN_EVERY_GROUP,
                    BRUTE_FORCE,
                    f"request {live.request.id} hit {hit} tokens, but {layers.kind} group {group} "
                    f"sees block {holes[0]} there, and its table has the null block",
                )

    def _property(self, live: Live, lack: Lack) -> str:
        if lack.why in ("full", "window", "chunk") and self._rejected(live, lack):
            return "rejected_drafts_are_never_indexed"
        return _BROKEN.get(lack.why, _IN_EVERY_GROUP)

    def _rejected(self, live: Live, lack: Lack) -> bool:
        layout = self._layout
        unit = lack.block * layout.groups[lack.group].block_size // layout.unit * layout.unit
        return self._session.running.was_lost("rejected", live.request, unit)

    def _said(self, lack: Lack) -> str:
        said = {
            "grain": f"units of {self._layout.unit} tokens end elsewhere, and so do partial blocks",
            "span": "that is inside a span",
            "state": f"group {lack.group} has no checkpoint after exactly so many",
            "draft": f"draft group {lack.group} needs one unit more",
            "experts": "expert rows are missing before that",
        }
        return said.get(lack.why, f"block {lack.block} of {lack.why} group {lack.group} is gone")
