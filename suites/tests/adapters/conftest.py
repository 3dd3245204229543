"""Engines of the adapters' tests: started once for each file, and skipped where not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.tests.adapters.engine_kit import SIZE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes a `handle` with every release in the module's `SPECS`."""
    specs = getattr(metafunc.module, "SPECS", ())
    if specs and "handle" in metafunc.fixturenames:
        metafunc.parametrize("handle", specs, indirect=True, scope="module")


@pytest.fixture(scope="module")
def handle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handle]:
    try:
        opened = open_handle(request.param, log_directory=tmp_path_factory.mktemp("engine"))
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with opened:
        yield opened


@pytest.fixture
def create(handle: Handle) -> Callable[..., Target]:
    def create(num_blocks: int = 12, block_size: int = SIZE, **rest: Any) -> Target:
        return handle.create(TargetConfig(num_blocks, block_size, **rest))

    return create


@pytest.fixture
def target(create: Callable[..., Target]) -> Target:
    return create()
