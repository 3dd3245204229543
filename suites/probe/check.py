"""A check of a server, and its possible verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.suites.framework.property import Property, table
from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.server_connection import Sent

Outcome: TypeAlias = Literal["pass", "fail", "inconclusive", "unsupported"]


@dataclass
class Verdict:
    """Result of a check."""

    about: Property
    outcome: Outcome
    reason: str = ""
    detail: str = ""
    """Description of a failure, line by line."""
    checks: int = 0
    situations: Counter[str] = field(default_factory=Counter)
    history: Sequence[Sent] = ()
    """Requests that show the failure."""
    shows: Answer | None = None
    """The wrong answer among them; the last by default."""


CHECKS = table(
    vars(),
    """
every_request_is_answered | C1
    A well-formed request gets a whole answer.
    why: Clients get errors, empty answers or broken streams for perfectly normal prompts.
counts_are_possible | V1
    Cached tokens are at least 0 and at most the prompt's.
    why: The bill shows more cached tokens than the prompt has.
the_last_token_is_computed | T1
    Fewer tokens are found than the prompt has.
    why: A prompt sent twice is claimed to be fully cached, although something has to be
    computed.
hits_end_within_what_is_shared | T1 H3
    No more tokens are found than an earlier prompt has in common with this one.
    why: The server reuses text beyond the common beginning, so another user's words may answer.
hits_are_whole_blocks | T1 T6
    Cached counts are multiples of the length at which hits grow.
    why: Odd counts of cached tokens hint at a cut within a block and at wrong keys there.
longer_prefixes_find_no_less | T1
    Sharing more words never finds fewer tokens.
    why: A longer common history makes chats slower than a short one.
equal_prompts_are_found_again | T2
    A repeated prompt is found, up to its last whole block.
    why: The cache is on and paid for, yet repeated prompts are as slow as new ones.
computed_answers_repeat | C7
    The same prompt, computed twice without the cache, has the same answer.
    why: Answers vary even without the cache, so no comparison can blame it.
answers_of_found_prompts_are_the_same | H1
    A prompt that is found is answered as when it was computed.
    why: A question asked for the second time gets a different answer.
answers_after_shared_prefixes_are_the_same | H1 T1
    A prompt whose beginning is found is answered as without the cache.
    why: A shared system prompt changes the answers to the questions that follow it.
deep_hits_are_answered_as_computed | H1 T1
    Prompts of every depth are found, and answered as when they were computed.
    why: Errors show only in long prompts, at a depth that short tests never reach.
hits_differ_no_more_than_recomputes | H1 C7
    Over all checks, answers change no more often after hits than computed again.
    why: Quality falls a little with the hit rate, hidden in the usual noise.
hits_save_time | V1 T1
    What counts as cached is not computed again: a hit answers sooner than a miss.
    why: The server reports cached tokens, yet first tokens come as late as without a cache.
salts_are_separate | H1 H2
    A prompt is never found under another cache_salt.
    why: A tenant can find out by timing which prompts another tenant has sent.
images_are_separate | M1
    Equal placeholders of another image are not found, those of the same image are.
    why: A chat about one image is continued with another one, or images are never reused.
conversations_go_on_as_if_computed | T7
    Later turns, whose earlier ones are found, are answered as without the cache.
    why: A chat forgets or confuses its earlier turns once they come from the cache.
cancelled_requests_leave_nothing_wrong | C6
    Prompts after a cancelled request are answered as if it had never been sent.
    why: After a user presses stop, the next prompt with the same beginning is answered wrongly.
equal_prompts_at_once_agree | C4
    Equal prompts sent at the same time are answered as one sent alone.
    why: A burst of equal prompts gets differing answers, some from unfinished memory.
prompts_at_once_do_not_mix | B6
    Prompts with a common prefix, sent at the same time, are answered as if sent alone.
    why: Under concurrent load one user's details turn up in another user's answer.
hits_in_a_crowd_are_answered_as_computed | B6 H1
    Prompts that are found among 64 others, or next to a long one, are answered as if sent alone.
    why: Answers from the cache are wrong at the busiest time of the day only.
hits_after_a_pause_are_answered_as_computed | H1
    Prompts that are found after a pause are answered as when they were computed.
    why: The first user after a quiet hour gets somebody else's words.
metrics_agree_with_answers | V1 V2
    The counters of /metrics grow by the counts in the answers.
    why: Graphs of the hit rate contradict the usage field that clients see.
nothing_is_held_afterwards | B2 B7
    When all requests have ended, /metrics shows nothing held, running or waiting.
    why: The usage gauge never returns to zero, and the server slows down over days.
""",
)
"""Properties in the order of the reports."""
TRACED = table(
    vars(),
    """
a_trace_changes_no_answer | B6 C7
    Requests of a replayed trace are answered as when each is sent alone.
    why: Under real traffic some answers differ from those of a quiet server.
a_neighbour_that_leaves_changes_no_answer | B6 C6
    A running request is answered as if a neighbour that is cancelled had never been there.
    why: After somebody else presses stop, a running answer goes on with wrong text.
neighbours_of_other_names_share_nothing | H1 H2
    Equal tokens under another salt or adapter, at the same time, are not found and change nothing.
    why: An adapter's answer is continued from the base model's cache while both run.
a_long_neighbour_costs_no_more_than_its_work | C1
    A short request beside a long prompt waits no longer than the work of both takes.
    why: One user's long document stops the chats of all others.
""",
)
"""Properties of a replayed trace."""
ALL = (*CHECKS, *TRACED)
(
    ANSWERED, POSSIBLE, LAST, WITHIN, BLOCKS, MONOTONE, FOUND, STEADY, AGAIN,
    PARTLY, DEEP, POOLED, CLAIMED, SALTS, IMAGES, CONVERSATION, CANCELS, DUPLICATES, NEIGHBOURS,
    CROWDS, PAUSES, METRICS, REST,
) = CHECKS  # fmt: skip
REPLAYED, LEAVING, NAMES, DELAYED = TRACED
