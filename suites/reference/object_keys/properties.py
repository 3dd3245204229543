"""Properties of the suite `keys`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

JOINED = "two namespaces whose texts are equal when joined"
KINDS = "an adapter with the name of a salt"
SHIFTED = "equal media in another place on equal tokens"
ALIKE = "media that differ in one digit of their hash"
TWINS = "two requests with equal blocks"
APPENDED = "tokens are appended to a block begun before"
CUT = "a history is cut inside a block"
EDITED = "tokens follow where others were cut off"
OTHER_GROUP = "equal requests in another group"
OTHER_EPOCH = "equal requests in another epoch"

PROPERTIES = table(
    vars(),
    """
keys_are_equal_iff_their_content_is | H1 H2 H6 H7 | by brute force
    two blocks have one key exactly if everything that determines their content is equal
    why: equal prompts miss the cache, or different prompts collide and share answers
    - JOINED KINDS SHIFTED ALIKE TWINS OTHER_GROUP OTHER_EPOCH
edited_keys_are_those_from_scratch | H5 | APPENDED CUT EDITED | by metamorphic pair
    a history that grew, was cut and went on has the keys of the same history hashed at once
    why: after an edit of a conversation the cache serves the text from before the edit
keys_repeat_in_every_process | H2 C7 | TWINS | by metamorphic pair
    a process with another hash seed gives every block the same key
    why: after a restart or on another worker a shared store never hits
""",
)
"""Keys are computed with every cryptographic algorithm."""
