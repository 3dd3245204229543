"""A failure is shrunk by the first worker that claims it; the others go on exploring."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kvproof.harness.campaign.ray_pool import beside_driver, connect


class Claims(Protocol):
    """Held by the driver; `claim` is handed to the workers."""

    @property
    def claim(self) -> Callable[[str, str], bool]:
        """Name and unit -> whether the unit has it now; the same unit may ask again."""

    def release(self, unit: str, *, used: Collection[str] = ()) -> None:
        """Give back the claims of a unit, but for the names that it has `used`."""

    def close(self) -> None:
        """Remove the folder."""


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

    def release(self, unit: str, *, used: Collection[str] = ()) -> None:
        """Remove the files of a unit."""
        kept = {_claimed(name) for name in used}
        for path in self._folder.iterdir():
            with suppress(OSError):
                if path.name not in kept and path.read_text(encoding="utf-8") == unit:
                    path.unlink()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _claimed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:24]


def _claim_file(folder: str, name: str, unit: str) -> bool:
    """Written aside and linked, so that a file is there with its owner in it, or not at all."""
    path = Path(folder, _claimed(name))
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(unit, encoding="utf-8")
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        with suppress(FileNotFoundError):  # it was released at this moment: free, for now
            return path.read_text(encoding="utf-8") == unit
        return False
    finally:
        aside.unlink()
    return True


class _Board:
    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def claim(self, name: str, unit: str) -> bool:
        return self._owners.setdefault(name, unit) == unit

    def release(self, unit: str, used: Collection[str]) -> None:
        self._owners = {
            name: own for name, own in self._owners.items() if own != unit or name in used
        }


class RayClaims:
    """An actor of the cluster, on the driver's node."""

    def __init__(self, address: str) -> None:
        self._ray = connect(address)
        self._board = beside_driver(self._ray, _Board)

    @property
    def claim(self) -> Callable[[str, str], bool]:
        """A function of the actor's handle."""
        return partial(_claim_actor, self._board)

    def release(self, unit: str, *, used: Collection[str] = ()) -> None:
        """Release the claim at the actor."""
        self._ray.get(self._board.release.remote(unit, list(used)))

    def close(self) -> None:
        """The actor ends with the driver's connection."""


def _claim_actor(board: Any, name: str, unit: str) -> bool:
    """A board that does not answer is gone with the driver, and so is this unit."""
    import ray  # only where a cluster runs

    return bool(ray.get(board.claim.remote(name, unit)))


class UnitClaims:
    """Claims of one unit: each property is claimed once, before it is shrunk."""

    def __init__(self, claim: Callable[[str], bool], known: Collection[str]) -> None:
        """`known` has been shrunk already."""
        self._claim = claim
        self._answers = dict.fromkeys(known, False)

    def __call__(self, name: str) -> bool:
        """Whether this unit is to shrink it."""
        if name not in self._answers:
            self._answers[name] = self._claim(name)
        return self._answers[name]

    @property
    def held(self) -> set[str]:
        """Claims of this unit."""
        return {name for name, ours in self._answers.items() if ours}
