"""Properties of the suite `tiers`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

HOST = "an object is read from host memory"
DISK = "an object is read from the disk and kept in host memory"
NO_COPY = "an object is read from the disk without room for it in host memory"
EVICTED = {tier: f"an object leaves {tier} for another" for tier in ("host memory", "the disk")}
TOO_LARGE = "an object larger than a tier"
SEVERAL = "several objects are stored in one call"
PASSED_OVER = "an object under a lease is not evicted in its turn"
DROPPED = "an object is dropped under a lease"
CLEARED = "host memory is cleared under a lease"
LEFT_OUT = "an object is left out, because what is read takes the room"

FULL = "the disk is full in the middle of a file"
BAD = {verb: f"a file operation fails: {verb}" for verb in ("write", "rename", "remove", "read")}
KILLED = {
    "write": "the process is killed while it writes",
    "rename": "the process is killed before a rename",
    "remove": "the process is killed before a removal",
}
KILLED_AFTER = {
    "write": "the process is killed after a write",
    "rename": "the process is killed after a rename",
}
RESTARTED = "a new process takes over"
NOT_WHOLE = "a new process meets a file that is not whole"
SHRUNK = "a new process may keep less"
FOREIGN = "a foreign file is in the folder"
DAMAGE = {
    "flip": "one bit of a file is wrong",
    "cut": "the end of a file is missing",
    "empty": "a file is empty",
    "longer": "a file is too long",
    "swap": "a file has the content of another object",
    "version": "a file is of another version",
}
DIFFERENT = {
    what: f"only this differs: {what}"
    for what in (
        "token", "adapter", "version", "salt", "lone surrogate", "span content",
        "span kind", "span start", "weights",
        "epoch", "process of an epoch", "geometry", "group", "window size", "unit", "part",
    )
}  # fmt: skip
EQUAL = "two processes with equal content"
EXTENDED = "a caller changes the links that it was given"

PROPERTIES = table(
    vars(),
    """
objects_come_back_as_they_were_stored | G7 H6 | HOST DISK NO_COPY RESTARTED SEVERAL | by brute force
    a read returns the bytes that were stored under its key, in any tier
    why: a prefix restored from host memory or disk holds other bytes, and its answer is wrong
torn_or_damaged_files_are_never_served | G7 H6 | DAMAGE KILLED FULL NOT_WHOLE | by brute force
    a file that differs from the object stored under its key counts as missing
    why: after a power cut half-written files are served as cached prefixes
what_was_whole_survives_the_process | G7 | by brute force
    a process finds what earlier ones have stored, drops what they were writing, and leaves
    alone what is not its own
    why: after a restart the disk cache is empty, or a cleanup deletes another program's files
    - RESTARTED KILLED_AFTER KILLED SHRUNK FOREIGN
tiers_stay_within_their_bytes | G7 B7 | EVICTED TOO_LARGE SHRUNK LEFT_OUT
    at no time does a tier hold more bytes than it may, files being written included
    why: the cache fills the disk or the host memory, and other services on the machine fail
the_least_recently_used_objects_leave_first | T3 C7 | EVICTED PASSED_OVER DISK | by brute force
    host memory and disk evict in LRU order, except objects that are being read
    why: the disk keeps stale prompts and drops the hot ones, so slow tiers hardly help
what_is_read_stays_as_it_is | G7 S2 | PASSED_OVER DROPPED CLEARED | by brute force
    bytes under a lease stay until it ends, whatever is dropped, cleared or evicted meanwhile
    why: an eviction during a slow copy swaps in bytes of another prompt
a_store_says_what_it_keeps | G7 B4 | SEVERAL TOO_LARGE LEFT_OUT FULL
    the keys that a store returns are those of the call that are resident after it
    why: the engine frees its own copy of a prefix that the store has refused
failures_of_the_disk_are_counted_and_harm_nobody | C8 V2 | FULL BAD
    no operation fails because the disk does; each failure is counted once
    why: a full or broken disk takes the whole engine down, or slows it with no trace
what_is_forgotten_is_not_found | H6 | DROPPED CLEARED
    a dropped object is in no tier, and a cleared tier has none
    why: prompts deleted for privacy reasons still answer from the disk
keys_differ_where_content_may | H6 H1 H2 H7 | DIFFERENT EQUAL EXTENDED | by metamorphic pair
    two keys are equal exactly if weights, epoch, geometry, layout, namespace, tokens, spans,
    unit and part are
    why: two models that share one store read each other's pages
""",
)
