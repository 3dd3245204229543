"""Who shrinks a failure: the first worker that claims it; the others go on exploring."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kvproof.harness.campaign.ray_pool import connect


class Claims(Protocol):
    """Held by the driver; `claim` is handed to the workers."""

    @property
    def claim(self) -> Callable[[str, str], bool]:
        """Name and unit -> whether the unit has it now; the same unit may ask again."""

    def release(self, unit: str) -> None:
        """Give back what a unit has claimed whose worker was lost."""

    def close(self) -> None:
        """Leave nothing behind."""


class DirectoryClaims:
    """Files in a folder that all workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.iterdir():  # of a driver that was killed
            left.unlink()

    @property
    def claim(self) -> Callable[[str, str], bool]:
        """A function of the folder's name, which a process can be sent."""
        return partial(_claim_file, str(self._folder))

    def release(self, unit: str) -> None:
        """Remove the files of a unit."""
        for path in self._folder.iterdir():
            with suppress(OSError):
                if path.read_text(encoding="utf-8") == unit:
                    path.unlink()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _claim_file(folder: str, name: str, unit: str) -> bool:
    """Written aside and linked, so that a file is there with its owner in it, or not at all."""
    path = Path(folder, hashlib.sha256(name.encode()).hexdigest()[:24])
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(unit, encoding="utf-8")
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        return path.read_text(encoding="utf-8") == unit
    finally:
        aside.unlink()
    return True


class _Board:
    """The state of RayClaims, in a process of its own."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def claim(self, name: str, unit: str) -> bool:
        return self._owners.setdefault(name, unit) == unit

    def release(self, unit: str) -> None:
        self._owners = {name: own for name, own in self._owners.items() if own != unit}


class RayClaims:
    """An actor of the cluster, on the driver's node."""

    def __init__(self, address: str) -> None:
        ray = connect(address)
        here = ray.get_runtime_context().get_node_id()
        near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        actor: Any = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=near)
        self._ray, self._board = ray, actor.remote()

    @property
    def claim(self) -> Callable[[str, str], bool]:
        """A function of the actor's handle."""
        return partial(_claim_actor, self._board)

    def release(self, unit: str) -> None:
        """Tell the actor."""
        self._ray.get(self._board.release.remote(unit))

    def close(self) -> None:
        """The actor ends with the driver's connection."""


def _claim_actor(board: Any, name: str, unit: str) -> bool:
    """A board that does not answer is gone with the driver, and so is this unit."""
    import ray  # only where a cluster runs

    return bool(ray.get(board.claim.remote(name, unit)))


class Tolerated(Collection[str]):
    """Properties whose violation does not stop a unit: known ones, and what others shrink."""

    def __init__(self, known: Collection[str], claim: Callable[[str], bool]) -> None:
        self._known = set(known)
        self._claim = claim
        self.mine: set[str] = set()
        """What this unit has claimed."""
        self.others: set[str] = set()
        """What failed here while another unit had claimed it."""

    def __contains__(self, name: object) -> bool:
        """Asked once for each property that fails."""
        if name in self._known or name in self.others or name in self.mine:
            return name not in self.mine
        assert isinstance(name, str)
        (self.mine if self._claim(name) else self.others).add(name)
        return name in self.others

    def __iter__(self) -> Iterator[str]:
        return iter(self._known | self.others)

    def __len__(self) -> int:
        return len(self._known | self.others)

    def settle(self, name: str) -> None:
        """Tolerate a property that this unit has shrunk."""
        self.mine.discard(name)
        self._known.add(name)
