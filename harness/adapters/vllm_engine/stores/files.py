"""Files of ExampleConnector: its own code copies, in the order of the device's stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from kvproof.harness.adapters.vllm_engine.stores.noted import note_filled
from kvproof.harness.contract.whole_engine import Refused
from kvproof.harness.whole_engine.device import ShadowDevice
from kvproof.harness.whole_engine.findings import IllegalAccess


def refused() -> str:
    """Say why the connector is not driven in this release; empty: it is."""
    import vllm

    early = vllm.__version_tuple__[:2] < (0, 33)
    return "ExampleConnector is driven from 0.33.0 on" if early else ""


class FileStore:
    """A folder of this engine alone."""

    def __init__(self, _: Any) -> None:
        """Raise Refused for releases whose caches the connector sees in another order."""
        if lacking := refused():
            raise Refused(lacking)
        self.folder = Path(mkdtemp(prefix="kvproof-shadow-files-"))

    def settings(self) -> dict[str, Any]:
        """Return the configuration of ExampleConnector."""
        extra = {"shared_storage_path": str(self.folder)}
        return {"kv_connector": "ExampleConnector", "kv_connector_extra_config": extra}

    def install(self) -> None:
        """There is nothing to stand in for."""

    def before_step(self, device: ShadowDevice) -> None:
        """Lose prompts by the pattern of this step, as a cleaner of old files would."""
        prompts = sorted(self.folder.iterdir())
        for at in device.losses.pick(len(prompts)):
            shutil.rmtree(prompts[at])
            device.findings.saw("a store loses a prompt")

    @staticmethod
    def seen(cache: Any, device: ShadowDevice) -> OnStream:
        """Return a layer's cache as the connector gets it."""
        return OnStream(cache, device)

    def close(self, *_: Any) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class OnStream:
    """A layer's cache on the device: a copy out waits for launches, a copy in is queued."""

    def __init__(self, cache: Any, device: ShadowDevice) -> None:
        self._cache, self._of = cache, device
        self.device, self.shape = cache.device, cache.shape

    def __getitem__(self, at: Any) -> Any:
        """Return a part, as a copy to the host does, when all that was launched has run."""
        self._of.complete(self._of.submitted)
        self._of.findings.saw("blocks are stored in another tier")
        return self._cache[at]

    def __setitem__(self, at: Any, source: Any) -> None:
        """Queue a copy after all earlier launches."""
        self._of.findings.saw("blocks are loaded from another tier")
        place = self._cache[at].shape
        if source.shape != place:
            raise IllegalAccess(f"a copy of {list(source.shape)} into {list(place)}")
        self._of.launch((), [lambda: self._cache.__setitem__(at, source)])
        note_filled(self._of, at[0])
