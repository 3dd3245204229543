"""A connector class of a user's own under vLLM's loop: names, options, and bugs that must be found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.harness.cli.app import main
from kvproof.harness.contract.whole_engine_traits import Tier, WholeEngineTraits
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.connected import divided, options_of, with_connector
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.registry import OwnTargets, check_names, open_handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.settings import load_settings
from kvproof.suites.framework.component_suite import run
from kvproof.suites.runner.registry import on
from kvproof.suites.runner.replay import expected_of
from kvproof.suites.whole_engine.table import LoopHistories  # noqa
