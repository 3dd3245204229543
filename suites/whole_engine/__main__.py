"""`python -m kvproof.suites.whole_engine search`: a long search by seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.evidence import play_script
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.suite import on_target
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.histories import PROFILES
from kvproof.suites.whole_engine.search import cut_down, search
from kvproof.suites.whole_engine.strategies import SUITE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, or 1 if a history failed."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.suites.whole_engine")
    commands = parser.add_subparsers(required=True)
    long = commands.add_parser("search", help="search the engine as it is")
    long.add_argument("--seconds", type=float, default=60.0)
    long.add_argument(
        "--known", default="", help="release whose known failures are passed over, as 0.33.0"
    )
    long.add_argument("--without", default="", help="features that are not drawn, as namespaces")
    long.set_defaults(run=_search)
    long.add_argument("--profiles", "--themes", dest="profiles", default=",".join(PROFILES))
    long.add_argument("--target", default="vllm-engine==0.33.0")
    long.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    return int(options.run(options))


def _profiles(options: argparse.Namespace) -> list[Callable[[Choices], Config]]:
    return [PROFILES[name] for name in options.profiles.split(",")]


def _search(options: argparse.Namespace) -> int:
    without = set(options.without.split(","))
    profiles = [_leaving_out(choose, without) for choose in _profiles(options)]
    end, seed = time.monotonic() + options.seconds, options.seed
    histories, operations = 0, 0
    failures, passed_over = Counter[str](), Counter[str]()
    with open_handle(options.target) as handle:
        known = _known_failures(handle, version=options.known)
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


def _known_failures(handle: Handle, *, version: str) -> tuple[Known, ...]:
    """Return the known failures of the engine, or of another release of it."""
    profile, names = handle.profile, [prop.name for prop in SUITE.properties]
    entries = expected_failures.load(
        profile.engine,
        version or profile.version,
        names=names,
        unsupported=profile.unsupported,
    )
    return expected_failures.known(profile.engine, entries)


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
