"""Explanations of single hits, by hand; the suite `explain` compares them with brute force."""

from __future__ import annotations

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import IdentityError, Namespace, Span
from kvproof.reference.observe.explainer import Explainer
from kvproof.reference.observe.explanation import LIMITS, Explanation
from kvproof.reports.charts.hit_loss import CAUSES
from kvproof.suites.reference.explain.properties import LOST

A = list(range(40))
FULL, STATE, WINDOW = GroupConfig("full", 4), GroupConfig("state", 4), GroupConfig("window", 4, 9)


def explainer(*groups: GroupConfig, num_blocks: int = 200, **options: object) -> Explainer:
    return Explainer(CacheManager(CacheConfig(num_blocks, 4, groups=groups, **options)))


def serve(explained: Explainer, name: str, tokens: list[int], **options: object) -> Explanation:
    """Compute all tokens, in as many steps as it takes."""
    step = explained.manager.begin_step()
    answer = explained.manager.admit(name, tokens, **options)
    explained.manager.end_step(step)
    assert isinstance(answer, Admission), answer
    while answer.stop < len(tokens):
        step = explained.manager.begin_step()
        answer = explained.manager.extend(name)
        explained.manager.end_step(step)
    explained.manager.release(name)
    return explained.explain(name)


def test_a_repeated_prompt_loses_only_alignment():
    explained = explainer()
    assert serve(explained, "r0", A).sentence() == (
        "hit nothing: no token of it was computed and stored before"
    )
    reported = serve(explained, "r1", A)
    assert (reported.optimum, reported.hit, reported.lost) == (39, 36, {"alignment": 3})
    assert reported.sentence() == (
        "hit 36 of 39 reusable tokens: 3 lost because hits are whole units of 4 tokens"
    )
    assert serve(explained, "r2", A[:21]).sentence() == "hit all 20 reusable tokens"


def test_tokens_that_no_whole_block_holds_are_reusable_and_lost():
    explained = explainer()
    serve(explained, "r0", A[:7])
    reported = serve(explained, "r1", A)
    assert (reported.optimum, reported.hit, reported.lost) == (7, 4, {"alignment": 3})


def test_eviction_is_named():
    explained = explainer()
    serve(explained, "r0", A)
    explained.manager.evict(4)
    reported = serve(explained, "r1", A)
    assert reported.lost == {"alignment": 3, "eviction": 12}
    assert "12 lost because the blocks from token 24 on were evicted" in reported.sentence()


def test_a_missing_checkpoint_is_named():
    explained = explainer(FULL, STATE)
    serve(explained, "r0", A)
    reported = serve(explained, "r1", [*A[:30], 7, 7])
    assert reported.sentence() == (
        "hit 0 of 30 reusable tokens: 2 lost because hits are whole units of 4 tokens, "
        "28 lost because no state checkpoint was saved between 0 and 28"
    )
    assert serve(explained, "r2", [*A[:28], 8]).hit == 28  # the divergence is saved


def test_an_evicted_checkpoint_is_named():
    explained = explainer(FULL, STATE, state_pool="separate", max_requests=2)
    serve(explained, "r0", A)
    for name in ("r1", "r2"):
        serve(explained, name, [ord(name[1]), *A])
    reported = serve(explained, "r3", A)
    assert reported.lost == {"alignment": 3, "checkpoint_evicted": 36}
    assert "36 lost because the state checkpoint after 36 tokens was evicted" in reported.sentence()


def test_a_checkpoint_of_another_branch_of_the_same_node_is_not_there():
    explained = explainer(GroupConfig("state", 3), state_pool="separate", max_requests=2)
    one, other = [0] * 15 + [1, 2, 2, 2], [0] * 15 + [1, 1, 1]
    serve(explained, "r0", one)
    # its states push out the one of r0 and then each other, and r0's tokens go with its state
    serve(explained, "r1", other, compute=17)
    assert serve(explained, "r2", one).lost == {"checkpoint_evicted": 18}


def test_no_room_for_a_checkpoint_is_named():
    explained = explainer(FULL, STATE, state_pool="separate", max_requests=1)
    serve(explained, "r0", A)
    reported = serve(explained, "r1", A)
    assert reported.lost == {"alignment": 3, "no_row": 36}
    assert "there was no room to save the state after 36 tokens" in reported.sentence()


def test_a_window_is_named():
    explained = explainer(FULL, WINDOW, num_blocks=28)
    step = explained.manager.begin_step()
    explained.manager.admit("r0", A)
    explained.manager.end_step(step)
    serve(
        explained, "r1", [100 + token for token in A[:20]]
    )  # takes what r0 left behind its window
    reported = serve(explained, "r2", [*A[:16], 7, 7])
    assert reported.lost == {"window": 16}
    assert "16 lost because the window before token 16 was evicted" in reported.sentence()


def test_a_span_is_named():
    explained = explainer()
    image = Span("image", 10, 20, "x")
    serve(explained, "r0", A, spans=[image])
    reported = serve(explained, "r1", [*A[:30]], spans=[image])
    assert reported.lost == {"alignment": 1, "span": 20}
    other = serve(explained, "r2", A, spans=[image._replace(content="y")])
    assert (other.optimum, other.hit) == (10, 8)


def test_draft_layers_are_named():
    explained = explainer(FULL, GroupConfig("full", 4, draft=True))
    serve(explained, "r0", A)
    assert serve(explained, "r1", A).lost == {"alignment": 3, "draft": 4}


def test_missing_expert_rows_are_named():
    options = {"return_routed_experts": True, "experts": (8, 1, 1), "require_cached_experts": True}
    explained = explainer(**options)
    serve(explained, "r0", A)
    assert serve(explained, "r1", A).lost == {"alignment": 3, "experts": 36}


def test_access_takes_what_is_left():
    explained = explainer()
    serve(explained, "r0", A)
    reported = serve(explained, "r1", A, access=decide(enabled=True, needs_every_token=True))
    assert reported.lost == {"alignment": 3, "access": 36}
    assert "it may not read the cache (needs every prompt token)" in reported.sentence()


def test_nothing_is_reusable_while_caching_is_off():
    explained = explainer(enable_prefix_caching=False)
    serve(explained, "r0", A)
    reported = serve(explained, "r1", A)
    assert (reported.optimum, reported.hit) == (0, 0)
    assert reported.sentence().endswith("(prefix caching is off)")


def test_partial_blocks_give_back_what_alignment_takes():
    explained = explainer(cache_partial_blocks=True)
    serve(explained, "r0", A[:30])
    reported = serve(explained, "r1", A)
    assert (reported.optimum, reported.hit, reported.lost) == (30, 30, {})
    explained.manager.evict(1)
    other = serve(explained, "r2", [*A[:30], 7])
    assert sum(other.lost.values()) == 30 - other.hit
    explained.manager.evict(1000)
    reported = serve(explained, "r3", A[:3])
    assert reported.lost == {"alignment": 2}
    assert "no partial block that goes on from there is cached" in reported.sentence()


def test_own_pins_are_named():
    explained = explainer(FULL, STATE, num_blocks=9)
    serve(explained, "r0", A[:24])
    reported = serve(explained, "r1", A[:25])
    assert reported.lost == {"no_row": 4, "own_pins": 20}


def test_namespaces_and_epochs_share_nothing():
    explained = explainer()
    serve(explained, "r0", A)
    assert serve(explained, "r1", A, namespace=Namespace(salt="s")).optimum == 0
    explained.manager.reset()
    assert serve(explained, "r2", A).optimum == 0


def test_rejected_drafts_are_not_reusable():
    explained = explainer()
    step = explained.manager.begin_step()
    explained.manager.admit("r0", A[:8])
    explained.manager.end_step(step)
    step = explained.manager.begin_step()
    explained.manager.extend("r0", [8], drafts=[9, 10, 11])
    explained.manager.end_step(step, accepted={"r0": 1})
    assert serve(explained, "r1", A).optimum == 10


def test_what_a_cancelled_request_was_computing_is_not_reusable():
    explained = explainer()
    step = explained.manager.begin_step()
    explained.manager.admit("r0", A)
    explained.manager.release("r0")
    explained.manager.end_step(step)
    assert serve(explained, "r1", A).optimum == 0


def test_only_what_is_admitted_is_explained():
    explained = explainer(num_blocks=5)
    explained.manager.begin_step()
    assert isinstance(explained.manager.admit("r0", A), Refusal)
    with pytest.raises(IdentityError):
        explained.manager.admit("r1", [])
    assert explained.explanations == []
    with pytest.raises(KeyError):
        explained.explain("r0")


def test_a_used_manager_is_refused():
    explained = explainer().manager
    serve(Explainer(explained), "r0", A)
    with pytest.raises(ValueError, match="explain a new one"):
        Explainer(explained)


def test_a_limit_can_be_lifted_before_the_request_comes():
    explained = explainer()
    serve(explained, "r0", A)
    explained.manager.evict(4)
    assert explained.hit_without((), A) == 24
    assert explained.hit_without([*LIMITS][3:], A) == 36
    assert explained.hit_without(LIMITS, A) == 39
    reported = serve(explained, "r1", A)
    assert [reported.hit_without(limit) for limit in ("eviction", "alignment")] == [36, 39]
    with pytest.raises(KeyError):
        reported.hit_without("weather")


def test_every_limit_has_a_name_in_reports_and_a_situation():
    assert list(CAUSES) == list(LIMITS) == list(LOST)
