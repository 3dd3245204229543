"""The factors of the engines of the suite `system`; `strategies` makes an engine of a row."""

from __future__ import annotations

from kvproof.harness.contract.factors import never
from kvproof.suites.framework.rows import Factors

OFF, ON, NONE = "off", "on", "none"
GROUPS = ("any", "plain", "recurrent", "beside full", "local", "sidecar")
"""Ways to draw groups; all but the first name the kinds."""
ROOMS = ("usual", "tight", "roomy", "spanned", "narrow", "crowded")
"""Pools for which something is scarce; all but the first give other options, too."""

FACTORS = Factors(
    {
        "groups": GROUPS,
        "room": (*["usual"] * 5, *ROOMS[1:]),
        "media": (*[OFF] * 3, ON),
        "experts": (*[NONE] * 3, "optional", "required"),
        "drafts": (OFF, OFF, ON),
        "partial": (OFF, ON),
        "caching": (*[ON] * 9, OFF),
        "state pool": ("shared", "separate"),
        "state budget": (NONE, "some"),
        "decode interval": (NONE, "a unit", "two units"),
        "step": ("many tokens", "many tokens", "few tokens"),
        "in flight": ("1", "2", "3"),
        "twin": (OFF, OFF, ON),
        "ranks": (OFF, OFF, ON),
        "scales": (OFF, OFF, ON),
        "tiers": (NONE, NONE, "host", *["host and disk"] * 2),
    },
    [
        never(
            "partial blocks are of full attention alone",
            {"groups": ("recurrent", "beside full", "local", "sidecar"), "partial": ON},
        ),
        never("a partial block has no rows", {"partial": ON, "experts": "required"}),
        never(
            "without a cache no tier has anything",
            {"caching": OFF, "tiers": ("host", "host and disk")},
        ),
        never(
            "what is scarce is room beside a cache",
            {"room": ("tight", "roomy", "spanned"), "caching": OFF},
        ),
        never("its longest prompt has no media", {"room": ("tight", "crowded"), "media": ON}),
        never("a step is shorter than a span", {"room": "spanned", "media": OFF}),
        never("a step is shorter than a span", {"room": "spanned", "step": "many tokens"}),
        never(
            "a prompt is computed in one step", {"room": ("tight", "roomy"), "step": "few tokens"}
        ),
        never("a step is shorter than the requests", {"room": "crowded", "step": "many tokens"}),
        never("its states are in the pool", {"room": "tight", "state pool": "separate"}),
        never("its states are within a budget", {"room": "roomy", "state budget": NONE}),
        never(
            "repeated prompts come from the host",
            {"room": "spanned", "tiers": (NONE, "host and disk")},
        ),
    ],
)
