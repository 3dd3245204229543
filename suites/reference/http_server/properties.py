"""Properties of a server: the suite `http`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

LAW = "expected hit"
"""Whole blocks of tokens computed before, counted from the tokens alone."""
WATCHED = "the model's recorded work"

TOGETHER = "several clients in one step"
EQUAL = "equal prompts at once"
SEVERAL = "several prompts in one request"
ANSWERS = "several answers to one prompt"
ANSWERS_HIT = "several answers to a prompt that hits"
TWO_STOPS = "two stop strings in one answer"
STREAMED = "an answer is streamed"
WHOLE = "an answer comes in one piece"
CHAT = "a chat with an image"
HIT = "a request hits"
HITS = "several prompts of one request hit"
ENDED = "an end token"
STOPPED = "a stop string"
ACROSS = "a stop string over several tokens of a stream"
LAST = "an end token where the answer is as long as it may get"
LENGTH = "the longest answer"
IGNORED = "an end token that is ignored"
SCORED = "scores of generated tokens"
PROMPT_SCORED = "scores of a prompt that is cached"
USAGE = "a stream ends with its usage"
PREEMPTED = "a preempted request ends"
SALT = "an equal prompt under another salt"
IMAGE = "an equal chat with another image of the same size"
LEFT_WAITING = "a client leaves before its request runs"
LEFT_RUNNING = "a client leaves while its request runs"
LEFT_WHOLE = "a client leaves that waits for a whole answer"
LEFT_SEVERAL = "a client with several prompts leaves"
FULL = "a request is turned away"
TOO_MANY = "a request has more prompts than there are places"
ROOM_AGAIN = "a request finds a place that another has given back"
NEVER_FITS = "a prompt that never fits"
TOO_LONG = "a prompt longer than the model reads"
BROKE = {verb: f"the model fails in {verb}" for verb in ("launch", "finish")}
SPARED = "a request waits while others fail"
AFTER = "a prompt begins like one that failed"
SCRAPED = "/metrics is read while requests run"
RESTED = "every request has ended"
WRONG = "a field outside its range"

PROPERTIES = table(
    vars(),
    """
every_client_reads_its_own_answer | H1 M1 C4 | by direct computation
    a client receives the answer to its own prompt, streamed or whole
    why: one user receives words of another user's answer
    - TOGETHER EQUAL SEVERAL ANSWERS STREAMED WHOLE CHAT HIT SALT ACROSS
finish_reason_is_correct | V2 | ENDED STOPPED TWO_STOPS LAST LENGTH IGNORED | by direct computation
    an answer ends with `stop` at an end token or a stop string, else with `length`
    why: clients take truncated answers for complete ones, or ask for more without need
logprobs_cover_every_token | A2 | SCORED PROMPT_SCORED | by direct computation
    a client that requests scores gets one for each token, with `echo` also for its prompt's
    why: evaluations by likelihood fail or shift by one token after a hit
usage_counts_computed_tokens | V1 | by the model's recorded work
    prompt, answer and cached tokens of all prompts of a request, as they were computed
    why: customers are billed for tokens that were cached, or not billed at all
    - HIT HITS ANSWERS_HIT USAGE PREEMPTED
clients_find_what_others_have_computed | T1 T2 | HIT SCORED | by expected hit
    a prompt hits all whole blocks that an answered request of its salt shares with it
    why: common prompts are computed anew for each user, and first tokens stay slow
clients_find_nothing_else | H1 M1 | HIT SALT IMAGE | by expected hit
    no prompt hits more than earlier requests with its salt and images have computed
    why: response times betray that another tenant has sent the same prompt
cancelled_requests_stop_computing | C6 | by the model's recorded work
    once a client has left, or has its answer, no step computes anything for it
    why: closed browser tabs keep the GPU busy, and paying users wait
    - LEFT_WAITING LEFT_RUNNING LEFT_WHOLE LEFT_SEVERAL
queue_slots_are_released | B4 B8 | FULL TOO_MANY ROOM_AGAIN
    a request is turned away if and only if its prompts find no place, and leaves nothing
    why: after a burst of rejected requests the server turns everybody away for good
oversized_requests_are_refused_at_once | B8 | NEVER_FITS TOO_LONG | by brute force
    a prompt too long for the model or the cache gets a 400, every other one an answer
    why: a prompt too long hangs until its timeout, or short prompts get an error
wrong_fields_are_refused | O1 | WRONG
    a field outside its documented range, or that the model cannot obey, is refused with its name
    why: a temperature is ignored without a word, and clients believe that it was used
a_failed_step_fails_its_requests | B6 C6 | by the model's recorded work
    when a step raises, exactly the requests in that step get an error
    why: one failed step kills unrelated streams, or its clients wait forever
    - BROKE SPARED AFTER
no_request_starves | C1 C3 | RESTED
    while a client waits, the engine has something to do
    why: a client's connection stays open while the engine does nothing for it
metrics_count_each_request_once | V1 V2 | by the model's recorded work
    /metrics counts requests by outcome, their tokens and places, each once
    why: graphs of traffic and errors do not match the requests that were sent
    - SCRAPED LEFT_RUNNING FULL PREEMPTED
nothing_is_held_once_all_have_gone | B2 B7 | RESTED LEFT_RUNNING
    without clients nothing is held, running, waiting or remembered
    why: an idle server keeps memory, and its next peak finds less room
""",
)
