"""The profile in groups: the flat names of 0.13 are accepted and read, also by a worker's JSON."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from kvproof.harness.contract.profile import (
    DraftProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.isolation.worker_main import decode, plain

GROUPED = Profile(
    engine="toy",
    version="1",
    block_sizes=(4,),
    media=SpanProfile(supported=True, clamp=True),
    recurrent=StateProfile(pools=("shared",), junctions=True),
    speculative=DraftProfile(tokens=True),
    policy=PolicyProfile(index="flat"),
)


def test_flat_keywords_of_0_13_make_the_same_profile():
    flat = Profile(
        engine="toy",
        version="1",
        block_sizes=(4,),
        spans=True,
        span_clamp=True,
        state_pools=("shared",),
        junctions=True,
        drafts=True,
        index="flat",
    )
    assert flat == GROUPED


def test_flat_names_are_read_from_their_groups():
    assert (GROUPED.span_clamp, GROUPED.state_pools, GROUPED.drafts) == (True, ("shared",), True)
    assert (GROUPED.index, GROUPED.eviction_order) == ("flat", "lru_tail_first")


def test_replace_takes_a_flat_name_and_keeps_the_rest_of_its_group():
    changed = replace(GROUPED, span_clamp=False)
    assert changed.media == SpanProfile(supported=True, clamp=False)
    assert changed.recurrent == GROUPED.recurrent


def test_parts_of_0_13_are_the_component_suites():
    made = Profile(engine="toy", version="1", block_sizes=(4,), parts={"prefixes": "toy:job"})
    assert made.parts == made.component_suites == {"prefixes": "toy:job"}
    assert "parts" not in made.flat()
    assert replace(made, parts={}).component_suites == {}


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match="span_clamps"):
        Profile(engine="toy", version="1", block_sizes=(4,), span_clamps=True)


def test_a_flat_profile_has_every_field_once():
    flat = GROUPED.flat()
    assert flat["span_clamp"] is True
    assert "media" not in flat
    assert Profile(**flat) == GROUPED


def test_groups_survive_the_worker_protocol():
    message = json.loads(json.dumps(GROUPED, default=plain))
    assert decode(Profile, message) == GROUPED


def test_an_author_of_a_plain_target_sees_about_twenty_fields():
    plain = {"bool", "Count", "Positive", "Name", "str"}
    plain_fields = [each for each in fields(Profile) if each.type in plain]
    assert len(plain_fields) <= 20
    assert len(fields(Profile)) <= 29
