"""Properties of the suite `metrics`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

REFUSED = "a request is refused"
RESUMED = "a preempted request comes back"
EVICTED = "blocks of several groups are evicted"
SAVED = "a state is saved"
RESTORED = "a state is restored"
IN_FLIGHT = "a step is in flight"
HIT = "a request hits"

PROPERTIES = table(
    vars(),
    """
counters_count_what_happened | V2 | REFUSED RESUMED EVICTED SAVED RESTORED IN_FLIGHT
    admissions, refusals, evictions, checkpoints and open steps are as many as there were
    why: dashboards miss refusals or evictions, and an overload looks like calm
log_lines_name_request_and_blocks | V2 | HIT SAVED RESTORED EVICTED
    each match, save, restore and eviction is one line with its request and its blocks
    why: one bad answer cannot be traced to its blocks in the log
""",
)
