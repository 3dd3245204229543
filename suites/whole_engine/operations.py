"""Operations of a history: requests, aborts, steps, resets and sleeps on a machine as it stands.

Prompts share a family's text up to lengths around block borders.
"""

from __future__ import annotations

from kvproof.suites.framework.component_suite import Arguments
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.machine import EngineMachine

MOST_REQUESTS = 40
"""Most requests of a history."""
_VERBS = ("submit",) * 6 + ("step",) * 9 + ("abort",) + ("drain",)


def operation(machine: EngineMachine, choices: Choices) -> tuple[str, Arguments]:
    """Choose the next operation for a machine as it stands."""
    more = (("reset",) if "reset" in machine.features else ()) + (
        ("sleep", "sleep", "wake", "wake") if "sleep" in machine.features else ()
    )
    if "sessions" in machine.features:
        more += ("close_session", "abort")
    verb = choices.pick(_VERBS + more)
    if verb == "drain" and not machine.since_drain:
        verb = "submit"
    if len(machine.submitted) >= MOST_REQUESTS and verb == "submit":
        verb = "step"
    if verb == "submit":
        return verb, _request(machine, choices)
    return verb, _ARGUMENTS[verb](machine, choices) if verb in _ARGUMENTS else {}


def _step(machine: EngineMachine, choices: Choices) -> Arguments:
    return {
        "count": choices.pick((1, 2, 4, 9)),
        "lag": choices.pick((0, 1, 1, 2)),
        "delay": choices.pick((0, 0, 1, 3, 9)),
        **({"lose": choices.pick(_LOSSES)} if "losses" in machine.features else {}),
        **(_between(machine, choices) if "linked" in machine.features else {}),
        **({"twice": choices.pick(_TWICE)} if "repeats" in machine.features else {}),
    }


def _between(machine: EngineMachine, choices: Choices) -> Arguments:
    """Choose the fate of messages, and which of two engines stands still."""
    lost, twice = "losses" in machine.features, "once" not in machine.features
    return {
        "messages": choices.pick((0, 0, 0, 0, 1 if lost else 0, 2 if twice else 0)),
        "pace": choices.pick(("both", "both", "both", "prefill", "decode")),
    }


def _abort(_: EngineMachine, choices: Choices) -> Arguments:
    return {"number": choices.number(0, 5)}


def _sleep(_: EngineMachine, choices: Choices) -> Arguments:
    return {
        "level": choices.pick(choices.traits.sleep_levels),
        "keep": choices.pick((False, True)),
    }


def _close_session(_: EngineMachine, choices: Choices) -> Arguments:
    return {"session": choices.pick(_SESSIONS)}


def _wake(_: EngineMachine, choices: Choices) -> Arguments:
    return {"in_parts": choices.pick((False, True))}


def _reset(_: EngineMachine, choices: Choices) -> Arguments:
    able = not choices.traits.lacks("reset of running requests")
    return {"running": able and choices.pick((False, True))}


_ARGUMENTS = {
    "step": _step, "abort": _abort, "sleep": _sleep, "wake": _wake, "reset": _reset,
    "close_session": _close_session,
}  # fmt: skip


def _request(machine: EngineMachine, choices: Choices) -> Arguments:
    features, traits = machine.features, choices.traits
    request: Arguments = {"id": f"r{len(machine.submitted)}", **_prompt(machine, choices)}
    request["answers"] = choices.pick(_OF_TURNS if "session" in request else _ANSWERS)
    if not choices.number(0, 5):
        block = machine.block_size
        request["stop"] = choices.pick((0, 1, 4, block - 1, block))
    if not traits.lacks("unread") and not choices.number(0, 9):
        request["reads_cache"] = False
    request["priority"] = choices.pick((0, 0, 1, 2))
    if "namespaces" in features and "session" not in request:
        request |= choices.pick(_namespaces(choices))
    if "drafts" in features:
        request["accepts"] = [
            choices.number(0, machine.drafts) for _ in range(choices.number(1, 3))
        ]
    if "linked" in features:
        request["route"] = choices.pick((0, 0, 0, 1, 6, 45 if "late" in features else 9))
        request["alone"] = choices.pick((False, False, False, True))
    if "embeds" in features and choices.pick((False, True)):
        request["embeds"] = True
    if "media" in features:
        request |= choices.pick(_MEDIA)
    return request


def _prompt(machine: EngineMachine, choices: Choices) -> Arguments:
    """Choose a later turn of another request, or a family's text and tokens of its own."""
    features, block = machine.features, machine.block_size
    if "turns" in features and machine.submitted and not choices.number(0, 4):
        return {"after": choices.pick(machine.submitted), "own": choices.number(1, 20)}
    session = _session(choices) if "sessions" in features else {}
    family = choices.number(0, 2)
    near = choices.pick((-1, 0, 0, 1, 7))
    shared = max(0, block * choices.number(0, 5) + near)
    own = choices.pick((0, 1, 1, 5, block - 1, block, block + 1))
    if "findable" in features and (shared + own) % block == 1:
        own += 1
    return {"family": family, "shared": shared, "own": own, **session}


def _session(choices: Choices) -> Arguments:
    """Choose a session for a request, or none."""
    return {"session": choices.pick(_SESSIONS)} if choices.pick((False, True)) else {}


def _namespaces(choices: Choices) -> list[Arguments]:
    able = {"salt": "salts", "adapter": "adapters"}
    return [
        each
        for each in _NAMESPACES
        if not any(choices.traits.lacks(able[name]) for name in each if name in able)
    ]


_ANSWERS = (1, 2, 9, 17, 30, 50, 200)
_OF_TURNS = (1, 1, 2, 2, 5, 9, 17)
"""Shorter ones: a session goes on when its turn has ended."""
_SESSIONS = ("s0", "s0", "s1")
_TWICE = (*[False] * 7, True)
_LOSSES = (0, 0, 0, 1, 2, 3, 4)
"""Patterns of `harness.whole_engine.failed_loads`."""
_NAMESPACES: tuple[Arguments, ...] = (
    {},
    {},
    {"salt": "s"},
    {"adapter": "s"},
    {"adapter": "s", "version": 1},
    {"adapter": "t"},
)
_MEDIA: tuple[Arguments, ...] = (
    {},
    {"media": [[4, 8, "cat 8"]]},
    {"media": [[4, 8, "dog 8"]]},
    {"media": [[10, 20, "cat 20"]]},
    {"media": [[10, 20, "dog 20"]]},
    {"media": [[4, 4, "cat 4"], [14, 18, "dog 18"]]},
    {"media": [[4, 4, "cat 4"], [14, 18, "cat 18"]]},
)
"""Equal content has equal length, as from an encoder."""
