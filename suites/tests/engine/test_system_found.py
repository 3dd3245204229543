"""Histories in which fuzzing found a mistake of the engine; each runs again as it was found."""

from __future__ import annotations

from kvproof.suites.play import play


def test_a_running_request_gets_the_room_that_it_waits_for():
    """Found by fuzzing: a younger request was let in again and again before an older one's span."""
    config = {
        "groups": [
            {"kind": "full", "block_size": 3, "kernel_block_size": 3, "draft": False},
            {"kind": "full", "block_size": 3, "kernel_block_size": 3, "draft": True},
            {"kind": "chunk", "block_size": 3, "size": 1, "kernel_block_size": 3, "draft": False},
            {"kind": "state", "block_size": 3, "state_blocks": 1},
        ],
        "partial_blocks": False,
        "num_blocks": 14,
        "prefix_caching": True,
        "state_pool": "separate",
        "max_requests": 5,
        "state_budget": 0,
        "decode_interval": 0,
        "max_batch_tokens": 1,
        "steps_in_flight": 3,
        "num_drafts": 2,
        "vocabulary": 2,
        "media": True,
        "experts": True,
        "require_experts": True,
        "twin": False,
    }
    play(
        "system",
        config,
        [
            ("add", {"name": "r1", "tokens": [0, 1, 0, 0, 1], "new": 5, "spans": []}),
            (
                "add",
                {
                    "name": "r2",
                    "tokens": [0, 1, 0, 0, 1, 0, 1, 1],
                    "new": 3,
                    "spans": [["image", 1, 7, "b"]],
                },
            ),
            ("add", {"name": "r3", "tokens": [0, 1, 0, 0, 1, 0, 1, 1, 0], "new": 4, "spans": []}),
            ("drain", {"forget": True}),
        ],
    )


def test_an_older_request_in_line_keeps_its_token_when_a_younger_one_is_at_a_span():
    """Found by fuzzing: the span of a younger request took the token that was kept for the head."""
    config = {
        "groups": [{"kind": "full", "block_size": 4}],
        "partial_blocks": True,
        "num_blocks": 6,
        "prefix_caching": True,
        "state_pool": "shared",
        "max_requests": 4,
        "state_budget": 0,
        "decode_interval": 0,
        "max_batch_tokens": 2,
        "steps_in_flight": 3,
        "num_drafts": 0,
        "vocabulary": 3,
        "media": True,
        "experts": False,
        "require_experts": False,
        "twin": False,
        "tiers": {"host": 3200, "disk": 0, "patience": 1},
    }
    play(
        "system",
        config,
        [
            ("add", {"name": "r2", "tokens": [2, 1, 0, 1], "new": 6, "spans": []}),
            ("step", {"count": 5}),
            (
                "add",
                {
                    "name": "r4",
                    "tokens": [2, 1, 2, 2, 0, 1, 1],
                    "new": 6,
                    "spans": [["video", 0, 2, "b"], ["image", 3, 2, "a"]],
                },
            ),
            ("step", {"count": 3}),
            ("step", {"count": 8}),
            ("reset", {}),
            ("step", {"count": 5}),
            ("preempt", {"name": "r2"}),
            ("step", {"count": 1}),
        ],
    )
