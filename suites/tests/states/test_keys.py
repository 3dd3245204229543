"""What the suite `keys` ignores."""

from __future__ import annotations

from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.object_keys.strategies import SUITE


def test_verbs_without_a_request_are_ignored():
    history = run(SUITE, {"algorithm": "sha256", "block_size": 2}, [("ask", {"of": 3})])
    assert history.operations[0].answer == ""
