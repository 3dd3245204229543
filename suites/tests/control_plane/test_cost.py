"""How the suite `cost` counts."""

from __future__ import annotations

from kvproof.suites.reference.complexity.machine import lines_of


def test_lines_are_counted_and_the_tracer_is_left_as_it_was():
    def work(times):
        total = 0
        for index in range(times):
            total += index
        return total

    (ten, few), (_, many) = (lines_of(lambda n=times: work(n)) for times in (5, 50))
    assert ten == 10
    assert many - few == 2 * 45
