"""Properties of the suite `evaluation`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

STREAMED = "a streamed answer"
WHOLE = "an answer in one piece"
OVERRIDDEN = "a request with a field that replaces a common one"
REFUSED = "a server that refuses"
BROKEN = "a server with an error of its own"
CUT = "a prompt that is too long"
FITS = "a prompt that fits"
LOST = "a right answer is lost"
WON = "a right answer is won"
INVALID = "an answer without a letter"
REPEATED = "repeats of a sample that differ"

PROPERTIES = table(
    vars(),
    """
requests_have_what_was_set | E1 E2 | STREAMED WHOLE OVERRIDDEN
    a server is asked for a chat completion with the fields that were set, those of the
    request first, with the prompt, and with nothing else
    why: an evaluation runs with other sampling settings than its report states
answers_are_those_of_the_server | E1 | STREAMED WHOLE REFUSED BROKEN
    text, reason, counts and outcome of an answer are those that the server sent, streamed or not
    why: a score reflects a parsing error of the evaluation and no weakness of the model
truncation_keeps_head_and_tail | E2 | CUT FITS | by brute force
    a prompt that is too long keeps its first and its last half of the tokens allowed, and
    others are sent whole
    why: long samples lose their question, and the benchmark underrates every configuration
repeats_count_once | E2 E3 | REPEATED | by brute force
    of all repeats of a sample one stands for it, with its most frequent answer
    why: more repeats look like more samples, and chance differences seem significant
flips_are_listed_by_sample | E3 | LOST WON INVALID | by brute force
    exactly the samples that two configurations answer differently are named, with both
    answers; one without a letter is of a class of its own
    why: a lost answer cannot be looked at, because the report names the wrong samples
p_values_are_exact | E3 | LOST WON | by brute force
    how likely a loss is by chance is the share of all ways to flip as many coins that lose as
    many; of the control, which has no order, the share of all ways that are as uneven
    why: a release is blocked by noise, or a real loss of quality passes as chance
""",
)
