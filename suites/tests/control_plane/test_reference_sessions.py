"""Sessions at their borders: wrong calls, tenants, media (Q7). Suite `sessions` judges the rest."""

from __future__ import annotations

from itertools import count

import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import AdmitRequest, Refusal
from kvproof.reference.cache.sessions import Sessions
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Namespace, Span
from kvproof.reference.core.validation import ConfigError

IMAGE = Span("image", 5, 2, "cat")


def sessions(blocks: int = 20) -> Sessions:
    clock = count()
    return Sessions(CacheManager(CacheConfig(blocks, block_size=2)), lambda: float(next(clock)))


def computed(them: Sessions, session: str, request: str, tokens: tuple[int, ...], **options) -> int:
    """Compute a turn and end it; returns its hit."""
    step = them._manager.begin_step()
    answer = them.begin(session, request, tokens, **options)
    assert not isinstance(answer, Refusal)
    them._manager.end_step(step)
    them.end(session)
    return answer.hit


@pytest.mark.parametrize(
    ("options", "why"),
    [({"idle": 0}, "idle"), ({"retention": "forever"}, "held or cached"), ({}, "not open")],
)
def test_a_session_that_cannot_be_opened_says_why(options, why):
    them = sessions()
    if not options:
        them.open("a")
    with pytest.raises(ConfigError, match=why):
        them.open("a", **options)


def test_a_session_runs_one_turn_at_a_time():
    them = sessions()
    them.open("a")
    with pytest.raises(RuntimeError, match="runs no turn"):
        them.end("a")
    them._manager.begin_step()
    them.begin("a", "r", (1, 2, 3))
    with pytest.raises(RuntimeError, match="runs turn 'r'"):
        them.begin("a", "s", (4,))


def test_an_unknown_session_is_not_closed():
    assert not sessions().close("a")


def test_a_session_stays_with_its_tenant():
    them = sessions()
    them.open("a", namespace=Namespace(salt="one"))
    computed(them, "a", "r1", (1, 2, 3, 4))
    assert computed(them, "a", "r2", (5,)) == 4
    assert them._manager.lookup((1, 2, 3, 4, 5)) == 0


def test_media_of_earlier_turns_stay_in_the_history():
    them = sessions()
    them.open("a")
    computed(them, "a", "r1", (1, 2, 3, 4))
    computed(them, "a", "r2", (1, 9, 9, 1), spans=[IMAGE])
    assert computed(them, "a", "r3", (7,)) == 8
    other = (1, 2, 3, 4, 1, 9, 9, 1, 7)
    assert them._manager.lookup(other, spans=[IMAGE]) == 8
    assert them._manager.lookup(other) == 4, "its image is part of what a block is made of"


def test_a_refused_request_leaves_media_of_sessions_held():
    them = sessions(blocks=7)
    them.open("a")
    computed(them, "a", "r1", (1, 2, 3, 4, 1, 9, 9, 1), spans=[IMAGE])
    them._manager.begin_step()
    assert not isinstance(them.admit(AdmitRequest("r2", (5, 6))), Refusal)
    refused = them.admit(AdmitRequest("r3", tuple(range(30, 42))))
    assert isinstance(refused, Refusal)
    assert them.open_ones["a"].kept == 8
