"""Rows of block targets: each makes a legal configuration, and every option of one is drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, cast

import pytest

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.adapters.reference.token_forms import FORMS, in_form, spoil
from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.profile import HostTierProfile, LayerProfile, Profile, StateProfile
from kvproof.harness.contract.target import Group, TargetConfig
from kvproof.reference.core.identity import Tokens, token_bytes
from kvproof.suites.conformance.compressed import ChangeGroups
from kvproof.suites.conformance.configs import config_of
from kvproof.suites.conformance.profiles import FULL, profiles, rows_of
from kvproof.suites.conformance.table import factors, kinds_of, missing
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.dealt import own_levels
from kvproof.suites.framework.pairs import Space, coverage

REFERENCE = make_target(TargetConfig(4, 2)).profile
HOSTED = Profile(
    "toy",
    "1",
    (1, 2, 16),
    layers=LayerProfile(
        groups=("full", "window", "state"), layouts=(("full", "window"), ("full", "state"))
    ),
    recurrent=StateProfile(pools=("separate",), partial=True),
    host_tier=HostTierProfile(policies=("write_through", "write_back"), groups=("full", "state")),
)

RANKED = Profile(
    "toy",
    "1",
    (1, 2, 4, 16),
    layers=LayerProfile(
        groups=("full", "window"),
        compression=(2, 4),
        compressed_kinds=("full",),
        further_layers=True,
        context_ranks=(2, 4),
        ranked_kinds=("full",),
    ),
)


def _draw(source: random.Random) -> Draw:
    """Return a function that draws from the strategies of `framework.draws`."""

    def draw(strategy: Any) -> Any:
        if hasattr(strategy, "elements"):
            return source.choice(strategy.elements)
        return source.randint(strategy.start, strategy.end)

    return draw


def _configs(
    profile: Profile, times: int = 1, *, changed: bool = False
) -> Iterator[tuple[dict[str, str], TargetConfig]]:
    table, source = factors(profile), random.Random(1)
    rows: list[tuple[Row, ChangeGroups | None]] = [(row, None) for row in table.covering * times]
    rows += [
        (table.draw(source.choice, own_levels(each.given, table)), each.change)
        for each in profiles(profile, "full")
        if changed or each.change is None
        for _ in range(5)
    ]
    for row, change in rows:
        whole = {**table.fixed, **row}
        yield whole, config_of(whole, profile, _unwrapped(source), change)


def _unwrapped(source: random.Random) -> Draw:
    draw = _draw(source)
    return lambda strategy: draw(getattr(strategy, "wrapped_strategy", strategy))


@pytest.mark.parametrize(
    "profile", [REFERENCE, HOSTED, RANKED], ids=["reference", "host tier", "context ranks"]
)
def test_a_configuration_has_the_levels_of_its_row(profile: Profile) -> None:
    for row, config in _configs(profile):
        groups = config.layout
        kinds = [group.kind for group in groups]
        assert sorted(kinds) == sorted(kinds_of(row))
        assert (len({group.block_size for group in groups}) > 1) == (row["blocks"] == "unequal")
        parts = any(0 < group.kernel_block_size < group.block_size for group in groups)
        assert parts == (row["kernel blocks"] == "parts")
        assert any(group.draft for group in groups) == (row["draft group"] != "none")
        assert config.prefix_caching == (row["caching"] == "on")
        assert bool(config.state_rows) == ("state" in kinds and row["states in"] == "separate")
        assert bool(config.host_policy) == (row["host"] != "none")
        assert config.num_blocks > profile.least_blocks


def test_a_rank_has_whole_entries_of_its_blocks() -> None:
    seen = set()
    for row, config in _configs(RANKED, changed=True):
        level = row["context ranks"]
        assert config.context_ranks == (1 if level == "one" else int(level))
        for group in config.layout:
            assert group.kind == "full" or config.context_ranks == group.entry == 1
            assert group.block_size % (config.context_ranks * group.entry) == 0
            seen.add((config.context_ranks, group.ratio, group.further_ratios))
    assert {ranks for ranks, _, _ in seen} == {1, 2, 4}
    assert any(ratio > 1 for _, ratio, _ in seen)
    assert any(len(further) > 1 for _, _, further in seen)


def test_the_reference_takes_every_configuration() -> None:
    for _, config in _configs(REFERENCE, changed=True):
        make_target(config)


@pytest.mark.parametrize(
    ("record", "name"),
    [(kind, field.name) for kind in (TargetConfig, Group) for field in fields(kind)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_every_option_of_a_configuration_is_drawn(record: type, name: str) -> None:
    configs = [
        config for each in (REFERENCE, HOSTED, RANKED) for _, config in _configs(each, changed=True)
    ]
    every = configs if record is TargetConfig else [one for each in configs for one in each.layout]
    assert len({getattr(one, name) for one in every}) > 1


def test_every_profile_of_the_level_full_has_rows_of_the_reference_or_needs_a_feature() -> None:
    rows = rows_of(REFERENCE, "full")
    for each in FULL:
        if each.needs(REFERENCE):
            row = rows.table.draw(random.Random(2).choice, own_levels(each.given, rows.table))
            assert rows.table.why_not(row) == ""


def test_the_core_has_one_group_and_no_pair_of_others() -> None:
    table = rows_of(REFERENCE, "core").table
    assert table.fixed["full"] == "one"
    assert not {"window", "state", "draft group", "draft tokens"} & table.levels.keys()


def test_a_layout_that_a_target_has_not_is_excluded_with_its_reason() -> None:
    reason = "its models have no others"
    profile = replace(HOSTED, narrowed={"layouts": reason})
    assert factors(profile).why_not({"window": "one", "state": "one"}) == reason


def test_a_level_that_a_target_has_not_is_recorded_with_the_reason_of_its_profile() -> None:
    profile = replace(HOSTED, unsupported={"pins": "no verb holds a prefix", "evict": "not so"})
    assert missing(profile) == {"pins": "no verb holds a prefix"}  # it evicts
    space = Space(factors(profile), {}, missing(profile))
    assert coverage(space, (), ()).excluded["pins, but off"] == "no verb holds a prefix"


def test_every_kind_of_tokens_that_the_reference_takes_is_given() -> None:
    tokens = (3, 1, 2)
    made = {type(form(tokens)).__name__ for form in FORMS.values()}
    assert made == {each.partition("[")[0].strip() for each in cast("str", Tokens).split(" | ")}
    assert {token_bytes(form(tokens)) for form in FORMS.values()} == {token_bytes(tokens)}


def test_a_buffer_is_overwritten_after_the_call() -> None:
    forms = [in_form((3, 1, 2), f"r{number}") for number in range(60)]
    for form in forms:
        spoil(form)
    left = {type(form).__name__ for form in forms if token_bytes(form) == token_bytes((3, 1, 2))}
    assert left == {"bytes", "tuple"}
