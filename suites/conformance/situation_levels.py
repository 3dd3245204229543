"""The levels of factors that a situation needs: other pairs with it are excluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvproof.harness.contract.profile import Profile
from kvproof.suites.conformance.table import BOTH_WINDOWS, ON, ONE, TWO
from kvproof.suites.framework.pairs import Needs

_CACHED = {"caching": [ON]}
_GROUPS = [ONE, TWO]
_STATE = {"state": _GROUPS}
_SAVED = {**_CACHED, **_STATE}
_REJECTED = {"draft tokens": ["few", "many"]}
_SPANS = {"spans": ["few", "many"]}


def situation_levels(profile: Profile) -> Needs:
    """Return situation -> factor -> levels of which it needs one."""
    return {**dict.fromkeys(_NEED_A_CACHE, _CACHED), **_NEEDS, **_of_host(profile)}


def _of_host(profile: Profile) -> Mapping[str, Mapping[str, Sequence[str]]]:
    host = {"host": list(profile.host_policies)}
    return {
        "a block is backed up to the host": host,
        "a block is only on the host": host,
        "a hit goes on in the host tier": host,
        "a host block is evicted": host,
        "a request is admitted while a backup is in flight": host,
        "a request ends while a backup is in flight": host,
        "a state is backed up to the host": {**host, **_STATE},
        "a hit goes on from a state of the host": {**host, **_STATE},
    }


_NEED_A_CACHE = (
    "a hit of one block",
    "a hit of several blocks",
    "a hit stops before the last token",
    "a lookup finds something",
    "a preempted request resumes on its own blocks",
    "a reset of a filled cache",
    "a prompt of an earlier epoch comes back",
    "blocks stay cached when no request is left",
    "cached blocks are evicted to make room",
    "a completed step shares an equal block",
    "a cached prompt comes back in another namespace",
)
"""Situations that nothing else excludes."""
_NEEDS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "a cached prompt comes back in another namespace": {**_CACHED, "namespaces": [ON]},
    "a cached prompt comes back under another key": {**_CACHED, "keys": [ON]},
    "a cached prompt comes back as ids instead of embeddings": {**_CACHED, "embeddings": [ON]},
    "a cached prompt comes back with equal embeddings": {**_CACHED, "embeddings": [ON]},
    "a cached prompt comes back with other embeddings": {**_CACHED, "embeddings": [ON]},
    "a cached prompt comes back with another span": {**_CACHED, **_SPANS},
    "a cached prompt comes back with the same spans": {**_CACHED, **_SPANS},
    "a cached prompt comes back with equal bytes of another kind": {**_CACHED, **_SPANS},
    "a cached prefix meets a request that may not read": {**_CACHED, "private": [ON]},
    "a prompt comes back that was not stored": {**_CACHED, "private": [ON]},
    "a pin is dropped": {**_CACHED, "pins": [ON]},
    "a checkpoint at a junction": _SAVED,
    "a checkpoint is restored": _SAVED,
    "a checkpoint is saved": _SAVED,
    "a checkpoint is saved while decoding": _SAVED,
    "a checkpoint is restored inside a block": {**_SAVED, "partial": [ON]},
    "a checkpoint is saved inside a block": {**_SAVED, "partial": [ON]},
    "a state inside a block is not saved": {**_STATE, "partial": [ON]},
    "a request hits while every state row is taken": {**_SAVED, "states in": ["separate"]},
    "a request meets a checkpoint of other tokens": _SAVED,
    "a rejected draft leaves states behind": {**_STATE, **_REJECTED},
    "a draft is rejected": _REJECTED,
    "a rejected draft across a block border": _REJECTED,
    "unequal counts of drafts are in flight": {**_REJECTED, "steps": ["several"]},
    "several steps are in flight": {"steps": ["several"]},
    "a hit is limited by a state": _SAVED,
    "a hit is limited by a window": {**_CACHED, "window": _GROUPS},
    "a hit is limited by a chunk": {**_CACHED, "chunk": _GROUPS},
    "a hit is limited by missing expert rows": {
        **_CACHED,
        "experts": ["required"],
        "expert rows": ["some"],
    },
    "a step completes without expert rows": {"expert rows": ["some"]},
    "a window hit with holes": {**_CACHED, "window": _GROUPS},
    "a window moves on while a later step is in flight": {"steps": ["several"]},
    "a draft group costs a unit": {
        **_CACHED,
        "draft group": ["full", "window", "chunk", BOTH_WINDOWS],
    },
    "a hit beside unequal windows of drafts": {**_CACHED, "draft group": [BOTH_WINDOWS]},
    "a hit in a model with a full draft group": {**_CACHED, "draft group": ["full"]},
    "a hit in blocks of several ranks": {**_CACHED, "context ranks": ["2", "4"]},
    "a hit in blocks of unequal sizes": {**_CACHED, "blocks": ["unequal"]},
    "a hit ends inside a block": {**_CACHED, "partial": [ON]},
    "a match ends inside a span": {**_CACHED, **_SPANS},
    "a clamp that needs two rounds": {**_CACHED, "spans": ["many"]},
    "a span lies inside the hit": {**_CACHED, **_SPANS},
    "a span over three and more blocks": _SPANS,
    "a span that ends on a block border": _SPANS,
    "two spans in a block": _SPANS,
    "an encoder runs": _SPANS,
    "spans in a model with windows": {**_SPANS},
    "decoding fills a block that spans touch": _SPANS,
}
