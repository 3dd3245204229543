"""The verdicts of `kvproof run` as pytest items, one per property.

`pytest --pyargs kvproof.suites --kvproof-target=my_pkg.my_module:make_target` explores each target
once and reports `cache[my_pkg.my_module:make_target]::namespaces_are_separate` and so on. Without
`--kvproof-target` the plugin does nothing; everything it needs is imported only then, and its
items use no fixtures, no markers and no module imports of pytest's own.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvproof.harness.isolation.handles import Handle
    from kvproof.harness.records.events import AnyEvent, Failure
    from kvproof.suites.framework.property import Level, Property

SURVIVAL = "target_survives"
"""Item that fails if the target crashes, hangs, answers nonsense, or breaks another property."""
CORPUS = "regression_corpus"
"""Item that fails if a recorded failure happens again."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the group `kvproof`."""
    group = parser.getgroup("kvproof", "conformance of paged KV caches")
    group.addoption(
        "--kvproof-target",
        action="append",
        default=[],
        metavar="SPEC",
        help="target to judge: reference, vllm==0.33.0, or package.module:make_target; repeatable",
    )
    group.addoption(
        "--kvproof-budget",
        default="pr",
        metavar="NAME",
        help="how much to explore: debug, pr (default) or nightly",
    )
    group.addoption(
        "--kvproof-level",
        default="core",
        metavar="NAME",
        help="which suites: core (default) or full",
    )
    group.addoption(
        "--kvproof-seed", type=int, metavar="N", help="draw other histories than the budget's own"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the targets under test, if there are any."""
    if not _targets(config):
        return None
    seed = config.getoption("kvproof_seed")
    drawn = "" if seed is None else f", seed {seed}"
    budget, level = config.getoption("kvproof_budget"), config.getoption("kvproof_level")
    return f"kvproof: {', '.join(_targets(config))}; level {level}, budget {budget}{drawn}"


def _targets(config: pytest.Config) -> list[str]:
    return list(dict.fromkeys(config.getoption("kvproof_target")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Refuse wrong options before anything is collected. Raises pytest.UsageError."""
    if not _targets(session.config):
        return
    from kvproof.harness.errors import UsageError

    try:
        _budget(session.config)
        _level(session.config)
        for spec in _targets(session.config):
            _open(spec, Path(tempfile.gettempdir())).close()
    except UsageError as error:
        raise pytest.UsageError(*filter(None, (str(error), error.hint))) from error


def _budget(config: pytest.Config) -> Any:
    from kvproof.harness.errors import UsageError
    from kvproof.suites.framework.budgets import BUDGETS, seeded

    name = config.getoption("kvproof_budget")
    if name not in BUDGETS:
        raise UsageError(f"unknown budget {name!r}", f"choose one of {', '.join(BUDGETS)}")
    derandomized = config.getoption("kvproof_seed") is None
    return BUDGETS[name] if derandomized else seeded(BUDGETS[name], None)


def _level(config: pytest.Config) -> Level:
    from kvproof.harness.errors import UsageError
    from kvproof.suites.framework.property import LEVELS

    name = config.getoption("kvproof_level")
    if name not in LEVELS:
        raise UsageError(f"unknown level {name!r}", f"choose one of {', '.join(LEVELS)}")
    level: Level = name
    return level


def _open(spec: str, log_directory: Path) -> Handle:
    from kvproof.harness.isolation.registry import open_handle

    return open_handle(spec, log_directory=log_directory)


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take over the folder of `kvproof.suites`, except for the project's own tests in it."""
    if path.name != "suites" or path != _suites_folder():
        return None
    if not _targets(parent.config) and (path / "tests").exists():
        return None
    return Suites.from_parent(parent, path=path, nodeid="kvproof.suites")


def _suites_folder() -> Path | None:
    spec = find_spec("kvproof.suites")
    return Path(spec.origin).parent if spec and spec.origin else None


class Suites(pytest.Directory):
    """The folder of the suites, with one collector per target and suite."""

    def collect(self) -> Iterator[TargetSuite]:
        """Yield the suites of the targets in the order given."""
        from kvproof.suites.runner.levels import catalogue

        if not _targets(self.config):
            raise self.CollectError("kvproof.suites judges a target: add --kvproof-target=SPEC")
        for spec in _targets(self.config):
            for name, properties in catalogue(_level(self.config)).items():
                yield TargetSuite.from_parent(
                    self, name=f"{name}[{spec}]", spec=spec, suite=name, properties=properties
                )


class TargetSuite(pytest.Collector):
    """One suite of one target; the exploration runs when the first property is wanted."""

    def __init__(
        self, *, spec: str, suite: str, properties: tuple[Property, ...], **keywords: Any
    ) -> None:
        super().__init__(**keywords)
        self.spec = spec
        self.suite = suite
        self.properties = properties
        self.events: list[AnyEvent] = []
        self.directory: Path | None = None
        self.problem = ""
        """Why nothing could be judged, in words for the user."""

    def collect(self) -> Iterator[Verdict]:
        """Yield the properties in the order of the rules, then what concerns the whole target.

        `-k` also selects a property by the name that it had in 0.14.
        """
        from kvproof.harness.records.renamed import RENAMED

        names = [prop.name for prop in self.properties]
        for name in [*names, *([CORPUS] if self.suite == "cache" else []), SURVIVAL]:
            item = Verdict.from_parent(self, name=name)
            item.extra_keyword_matches.update(old for old, new in RENAMED.items() if new == name)
            if self.config.pluginmanager.hasplugin("xdist"):
                item.add_marker(pytest.mark.xdist_group(self.name))
            yield item

    def setup(self) -> None:
        """Run the suite on the target once, and keep any error."""
        from kvproof.harness.errors import UsageError
        from kvproof.harness.records.run_directory import RunWriter
        from kvproof.suites.runner.runner import SuiteRun

        self.directory = Path(tempfile.mkdtemp(prefix="kvproof-pytest-"))
        writer = RunWriter(self.directory, self._manifest())
        handle = _open(self.spec, self.directory)
        try:
            run = SuiteRun(handle, writer, write=self._record(writer), level=_level(self.config))
            seed = self.config.getoption("kvproof_seed")
            run.run(_budget(self.config), seed=seed, only=self.suite)
        except UsageError as error:
            self.problem = f"{error}\n{error.hint}".rstrip()
        finally:
            handle.close()
            writer.close()

    def _record(self, writer: Any) -> Any:
        def write(event: AnyEvent) -> None:
            self.events.append(event)
            writer.write(event)

        return write

    def _manifest(self) -> Any:
        from datetime import datetime, timezone

        from kvproof.harness.records.run_directory import Manifest

        now = datetime.now(timezone.utc)
        return Manifest(
            id=f"{now:%Y%m%d-%H%M%S}-pytest",
            verb="run",
            command=["pytest", *self.config.invocation_params.args],
            started=now.isoformat(timespec="seconds"),
            config={
                "targets": [self.spec],
                "budget": self.config.getoption("kvproof_budget"),
                "level": _level(self.config),
                "suite": self.suite,
            },
            seed=self.config.getoption("kvproof_seed"),
            versions={"python": sys.version.split()[0], "pytest": pytest.__version__},
            hardware={},
        )

    def teardown(self) -> None:
        """Keep the records only if there is something to look at."""
        if self.directory and self.session.testsfailed == 0:
            shutil.rmtree(self.directory)

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Broken(Exception):
    """A verdict that is not green; its text is the whole report."""


class Verdict(pytest.Item):
    """One property of one target."""

    parent: TargetSuite

    def runtest(self) -> None:
        """Turn the recorded verdict into pytest's own."""
        from kvproof.harness.records.events import HarnessFault

        if self.parent.problem:
            raise Broken(self.parent.problem)
        for fault in self.parent.of(HarnessFault):
            raise Broken(f"kvproof itself failed in {fault.where}\n\n{fault.traceback}")
        if self.name == CORPUS:
            self._corpus()
        elif self.name == SURVIVAL:
            self._survival()
        else:
            self._property()

    def _property(self) -> None:
        from kvproof.harness.records.resume import final_verdicts

        judged = final_verdicts(self.parent.events)
        found = next((event for event in judged if event.property == self.name), None)
        if found is None:
            raise Broken(f"inconclusive: the target died before this was judged, see {SURVIVAL}")
        if found.verdict == "unsupported":
            pytest.skip(found.reason)
        if found.verdict == "expected_failure":
            pytest.xfail(found.reason)
            raise Broken(f"expected failure: {found.reason}")  # with --runxfail
        if found.verdict == "inconclusive":
            raise Broken(f"inconclusive: {found.reason}\n({found.sentence})")
        if found.verdict == "fail":
            raise Broken(self._failure(found.reason))

    def _failure(self, reason: str) -> str:
        from kvproof.harness.records.events import Failure

        shown = [e for e in self.parent.of(Failure) if e.property == self.name]
        return _describe(shown[0], self.parent.directory) if shown else reason

    def _corpus(self) -> None:
        from kvproof.harness.records.events import Replayed

        bad = [each for each in self.parent.of(Replayed) if each.outcome not in ("PASS", "FIXED")]
        if bad:
            raise Broken("\n".join(f"{e.outcome} {e.path}: {e.message}" for e in bad))

    def _survival(self) -> None:
        from kvproof.harness.errors import ANSWERS
        from kvproof.harness.records.events import Failure, TargetFailed

        judged = {prop.name for prop in self.parent.properties}
        for event in self.parent.of(Failure):
            if event.property not in judged:  # of a higher level, and broken all the same
                raise Broken(f"{event.property}: {_describe(event, self.parent.directory)}")
        for event in self.parent.of(TargetFailed):
            parts = [f"{event.kind}: {event.message}"]
            failures = self.parent.of(Failure)
            shown = next((e.history for e in failures if e.property == ANSWERS), event.history)
            if shown:
                parts.append(f"history:\n{_steps(shown)}")
            if event.log:
                parts.append(f"log:\n{textwrap.indent(event.log.rstrip(), '  ')}")
            raise Broken("\n\n".join(parts))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show a verdict as its own text, anything else as pytest does."""
        if isinstance(excinfo.value, Broken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Head the report of a failure with the id that a person knows."""
        return self.path, None, f"{self.parent.name}::{self.name}"


def _describe(failure: Failure, directory: Path | None) -> str:
    log = (directory or Path()) / failure.op_log
    parts = [
        f"{failure.sentence}",
        f"rules {', '.join(failure.rules)}; caught by {failure.oracle}; "
        f"fingerprint {failure.fingerprint}",
        failure.detail,
        f"minimal history:\n{_steps(failure.history)}",
        f"reproducer:\n{textwrap.indent(failure.script.rstrip(), '  ')}",
        f"again: kvproof replay {log} --target {failure.target}",
    ]
    return "\n\n".join(filter(None, parts))


def _steps(history: list[Any]) -> str:
    lines = []
    for number, step in enumerate(history, 1):
        lines.append(f"  {number:2} {step.op}({step.arguments}) -> {step.answer}")
        if step.note:
            lines.append(f"     {step.note}")
    return "\n".join(lines)
