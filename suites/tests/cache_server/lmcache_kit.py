"""LMCache in the environment that kvproof builds for it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework.component_suite import RemoteCalls
from kvproof.suites.framework.suite import _call

SPEC = "lmcache==0.5.6"


def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handle]:
    """Yield a handle, or skip with the command that installs LMCache."""
    try:
        handle = open_handle(SPEC, log_directory=tmp_path_factory.mktemp("lmcache"))
    except UsageError as missing:
        pytest.skip(f"{missing}: {missing.hint}")
    with handle:
        yield handle


def asking(handle: Handle, part: str) -> RemoteCalls:
    """Ask LMCache for what it offers of a part."""
    return partial(_call, handle, handle.profile.parts[part])
