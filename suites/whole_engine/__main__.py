"""`python -m kvproof.suites.whole_engine bugs|search`: planted bugs, and a long search by seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.evidence import play_script
from kvproof.suites.framework.suite import on_target
from kvproof.suites.whole_engine import planted_bugs
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.histories import PROFILES
from kvproof.suites.whole_engine.search import cut_down, search
from kvproof.suites.whole_engine.strategies import SUITE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or 1 if a bug was not found or a history failed."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.suites.whole_engine")
    commands = parser.add_subparsers(required=True)
    bugs = commands.add_parser("bugs", help="plant bugs in the engine, print what finds them")
    bugs.add_argument("--only", default="*", help="globs of names or mechanisms, between |")
    bugs.add_argument("--histories", type=int, default=planted_bugs.HISTORIES)
    bugs.add_argument("--seconds", type=float, default=60.0, help="of search for each bug")
    bugs.add_argument("--cut", type=float, default=8.0, help="seconds of leaving operations out")
    bugs.set_defaults(run=_bugs)
    long = commands.add_parser("search", help="search the engine as it is")
    long.add_argument("--seconds", type=float, default=60.0)
    long.add_argument(
        "--known", default="", help="release whose known failures are passed over, as 0.33.0"
    )
    long.add_argument("--without", default="", help="features that are not drawn, as namespaces")
    long.set_defaults(run=_search)
    for each in (bugs, long):
        each.add_argument("--profiles", "--themes", dest="profiles", default=",".join(PROFILES))
        each.add_argument("--target", default=planted_bugs.RELEASE)
        each.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _profiles(options: argparse.Namespace) -> list[Callable[[Choices], Config]]:
    return [PROFILES[name] for name in options.profiles.split(",")]


def _bugs(options: argparse.Namespace) -> int:
    chosen = planted_bugs.chosen(options.only)
    kills = []
    with open_handle(options.target) as handle:
        hunting = planted_bugs.hunt(
            handle,
            chosen,
            seed=options.seed,
            histories=options.histories,
            seconds=options.seconds,
            profiles=_profiles(options),
            cut=options.cut,
        )
        for kill in hunting:
            kills.append(kill)
            _say(f"{kill.bug.name}: {kill.found_by or 'NOT FOUND'} after {kill.seconds:.1f} s, "
                 f"{kill.histories} histories; {kill.sentence}")  # fmt: skip
    _say("\n".join(planted_bugs.table(kills)))
    missed = [each.bug.name for each in kills if bool(each.found_by) != bool(each.bug.property)]
    _say(f"{len(kills)} bugs, not as expected: {missed}")
    return int(bool(missed))


def _search(options: argparse.Namespace) -> int:
    without = set(options.without.split(","))
    profiles = [_leaving_out(choose, without) for choose in _profiles(options)]
    end, seed = time.monotonic() + options.seconds, options.seed
    histories, operations = 0, 0
    failures, passed_over = Counter[str](), Counter[str]()
    with open_handle(options.target) as handle:
        known = planted_bugs.known_failures(handle, version=options.known)
        suite = on_target(SUITE, handle)._replace(known=known)
        while time.monotonic() < end:
            found = search(
                suite,
                seed=seed,
                histories=12 * len(profiles),
                operations=50,
                profiles=profiles,
                seconds=max(0.0, end - time.monotonic()),
            )
            passed_over.update(found.known)
            seed, histories = seed + 1, histories + found.histories
            operations += found.operations
            if found.died:
                _say(f"the target died: {found.died}\n{found.died.log}")
                return 1
            if found.failure:
                failures[found.failure.violation.property] += 1
                _say(play_script(cut_down(suite, found.failure), options.target))
    _say(
        f"{histories} histories, {operations} operations; failures: {dict(failures)}; "
        f"known: {dict(passed_over)}"
    )
    return int(bool(failures))


def _leaving_out(
    profile: Callable[[Choices], Config], features: Collection[str]
) -> Callable[[Choices], Config]:
    def choose(choices: Choices) -> Config:
        config = profile(choices)
        return {**config, "features": [each for each in config["features"] if each not in features]}

    return choose


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
