# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: of 62 layers, those of a stage of 15 send their values to other layers.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"](more=["prometheus_client"])

from sglang.srt.disaggregation.common.conn import CommonKVManager

LAYERS, FIRST, COUNT = 62, 15, 15


def buffers(layers):
    """Return names in place of pointers: keys, then values."""
    return [(kind, layer) for kind in ("keys", "values") for layer in layers]


manager = SimpleNamespace(kv_args=SimpleNamespace(prefill_start_layer=FIRST))
keys, values, to_keys, to_values, _ = CommonKVManager.get_mha_kv_ptrs_with_pp(
    manager, buffers(range(FIRST, FIRST + COUNT)), buffers(range(LAYERS))
)
print(f"{keys[0]} go to {to_keys[0]}, {values[0]} go to {to_values[0]}")
if (keys, values) == (to_keys, to_values):
    raise SystemExit("keys and values of each layer go to it")
