"""Environments of the engines under test, each with its own Python packages.

`<home>/targets/vllm-0.33.0` is a virtual environment built from a lock file of this package and
the Python files of the engine's wheel; home is `$KVPROOF_HOME` or `~/.cache/kvproof`. A marker
with the lock's hash makes a second install a matter of milliseconds. A release without a lock gets
the packages of the nearest one, and its further imports in the versions that its own wheel
asks for; then its adapter judges whether it fits.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

import msgspec

from kvproof.harness.contract.releases import nearest
from kvproof.harness.contract.target import TargetConfig
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation import fit, wheels
from kvproof.harness.isolation.worker_handle import WorkerHandle

_LOCKS = Path(__file__).parents[1] / "locks"

_MARKER = "kvproof.json"

_KEPT = {
    "dynamo": ("dynamo/_core.abi3.so",),
    "lmcache": ("lmcache/lmcache_native*.so",),
    "sglang": (
        "sglang/kernels/jit/*",
        "sglang/jit_kernel/*",
        "sglang/srt/mem_cache/rust_tree_core/*.so",
    ),
}
"""Engine -> patterns of the files that it needs from its wheel besides Python files."""

_PACKAGES = {
    "lmdeploy-engine": "lmdeploy",
    "sglang-engine": "sglang",
    "vllm-engine": "vllm",
    "vllm-live": "vllm",
}
"""Engine -> package of its environment, where the two differ."""

_DISTRIBUTIONS = {"dynamo": "ai-dynamo-runtime"}
"""Package -> its name on an index, where the two differ."""

_FREE_BYTES = 3 << 30
"""Free disk space for a build: packages of about 1.5 GB plus their wheels."""

_INDEX_HINT = (
    "pip uses your own configuration; the CPU build of torch is on an index of its own, chosen by "
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
)


class Place(Protocol):
    """An environment, and its purpose in words."""

    @property
    def directory(self) -> Path:
        """Where it is, or will be."""

    @property
    def lock(self) -> Path:
        """Its lock file."""

    @property
    def python(self) -> Path:
        """Its interpreter."""


class EngineVersion(NamedTuple):
    """One engine in one version, written `vllm==0.33.0`."""

    engine: str
    version: str

    def __str__(self) -> str:
        return f"{self.engine}=={self.version}"

    @property
    def package(self) -> str:
        """The installed package, `vllm==0.33.0`: targets of one package share its environment."""
        return f"{package_of(self.engine)}=={self.version}"

    @property
    def distribution(self) -> str:
        """The package as an index names it, `vllm==0.33.0`."""
        return f"{distribution_of(self.engine)}=={self.version}"

    @property
    def public(self) -> str:
        """The version without the name of a build: 0.33.0 of 0.33.0+cpu."""
        return self.version.partition("+")[0]

    @property
    def locked(self) -> bool:
        """Whether there is a lock file of this very version, and an environment can be made."""
        return self not in ON_A_CARD and _lock(self).exists()

    @property
    def lock(self) -> Path:
        """Its lock file, or that of the nearest version. Raises ValueError if there is none."""
        others = (
            each for each in _LOCKS.glob("*.txt") if _stem(each)[0] == package_of(self.engine)
        )
        by_version = {_stem(each)[1]: each for each in others}
        return by_version[nearest(self.public, by_version)]

    @property
    def directory(self) -> Path:
        """Its environment; may be missing."""
        return home() / "targets" / self.package.replace("==", "-")

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.directory / "bin" / "python"

    @property
    def factory(self) -> str:
        """The adapter's factory, imported in the worker."""
        return factory_of(self.engine)


def package_of(engine: str) -> str:
    """Return the name of an engine's package."""
    return _PACKAGES.get(engine, engine)


def distribution_of(engine: str) -> str:
    """Return the name of an engine's package on an index, and in its own metadata."""
    package = package_of(engine)
    return _DISTRIBUTIONS.get(package, package)


def factory_of(engine: str) -> str:
    """Return the factory of an engine's adapter."""
    return f"kvproof.harness.adapters.{engine.replace('-', '_')}.target:make_target"


def _lock(wanted: EngineVersion) -> Path:
    return _LOCKS / f"{wanted.package.replace('==', '-')}.txt"


def _stem(lock: Path) -> tuple[str, str]:
    engine, _, version = lock.stem.rpartition("-")
    return engine, version


WHOLE_ENGINES = (
    EngineVersion("lmdeploy-engine", "0.18.0"),
    EngineVersion("sglang-engine", "0.5.23"),
    EngineVersion("vllm-engine", "0.33.0"),
)
"""Engines' own loops, in the environments of their cache managers."""

ON_A_CARD = (EngineVersion("vllm-live", "0.33.0"),)
"""Engines with their compiled kernels: no environment of ours has those."""


class _Marker(msgspec.Struct, frozen=True):
    lock: str
    python: str = ""
    wheel: str = ""
    """File name of an engine's own build; empty: that of the index."""


def home() -> Path:
    """The folder of everything that kvproof keeps between runs."""
    chosen = os.environ.get("KVPROOF_HOME") or Path.home() / ".cache" / "kvproof"
    return Path(chosen).expanduser().absolute()


def known() -> list[EngineVersion]:
    """Engine versions with a lock file."""
    stems = sorted(lock.stem for lock in _LOCKS.glob("*.txt"))
    loops = (each for each in WHOLE_ENGINES if each.locked)
    return sorted([*(EngineVersion(*stem.rsplit("-", 1)) for stem in stems), *loops])


def engines() -> set[str]:
    """Return the engines that an adapter drives."""
    return {each.engine for each in (*known(), *ON_A_CARD)}


def others() -> list[EngineVersion]:
    """Return the engines installed without a lock file: other releases, and own builds."""
    folders = (home() / "targets").glob(f"*/{_MARKER}")
    named = (marker.parent.name.rpartition("-") for marker in folders)
    there = [EngineVersion(engine, version) for engine, _, version in named]
    return sorted(each for each in there if each.engine in engines() and not each.locked)


def parse(spec: str) -> EngineVersion:
    """Read `engine==version`, any version of a known engine. Raises UsageError."""
    engine, _, version = spec.partition("==")
    if engine not in engines() or not _VERSION.fullmatch(version):
        choices = ", ".join(map(str, known()))
        raise UsageError(
            f"no environment is known for target {spec!r}",
            f"known environments: {choices}; other versions of these engines can be tried",
        )
    return EngineVersion(engine, version)


_VERSION = re.compile(r"\d+(\.\d+)+([.+]?[0-9A-Za-z]+)*")
"""A version; nothing else becomes the name of a folder."""


def state(wanted: Place) -> str:
    """`installed`, `outdated` (its lock has changed since), or `missing`."""
    if not wanted.directory.exists():
        return "missing"
    try:
        marker = msgspec.json.decode((wanted.directory / _MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError):
        return "outdated"
    current = marker.lock == _lock_hash(wanted) and wanted.python.exists()
    return "installed" if current else "outdated"


def _lock_hash(wanted: Place) -> str:
    return hashlib.sha256(wanted.lock.read_bytes()).hexdigest()


def install(spec: str, *, progress: Callable[[str], None], wheel: Path | None = None) -> Path:
    """Build the environment of `engine==version` unless it exists; returns its directory.

    With `wheel`, a build of the engine in a file: `spec` may be the engine alone. `progress` gets
    one line per stage. Raises UsageError with the reason of a failed build, and leaves nothing
    half-made.
    """
    wanted = parse(spec if wheel is None else wheels.named(spec, wheel, distribution_of))
    return made(wanted, partial(_build, wanted, progress, wheel), progress, anew=wheel is not None)


def made(
    wanted: Place,
    build: Callable[[Path], None],
    progress: Callable[[str], None],
    *,
    anew: bool = False,
) -> Path:
    """Build an environment in a folder next to it, unless it exists or with `anew`; return it."""
    with exclusive(wanted):
        if not anew and state(wanted) == "installed":
            progress(f"{wanted} is installed in {wanted.directory}")
            return wanted.directory
        with building(wanted) as scratch:
            build(scratch)
            put_in_place(wanted.directory, scratch)
    progress(f"{wanted} is ready in {wanted.directory}")
    return wanted.directory


def remove(spec: str) -> bool:
    """Delete the environment of `engine==version`; False if there was none."""
    wanted = parse(spec)
    with exclusive(wanted):
        if not wanted.directory.exists():
            return False
        shutil.rmtree(wanted.directory)
        return True


@contextmanager
def exclusive(wanted: Place) -> Iterator[None]:
    """One build or removal at a time, between processes too."""
    folder = wanted.directory.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{wanted.directory.name}.lock").open("w")
    except OSError as error:
        raise UsageError(
            f"cannot write {str(folder)!r}: {error.strerror}",
            "choose a writable folder with KVPROOF_HOME",
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def building(wanted: Place) -> Iterator[Path]:
    """A sibling of the environment to build in, gone afterwards; also removes a killed build's."""
    scratch = wanted.directory.with_name(f".{wanted.directory.name}.building")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        yield scratch
    except OSError as error:
        raise UsageError(
            f"cannot build the environment of {wanted}: {error.strerror or error}",
            _space_hint() if error.errno == errno.ENOSPC else "",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _space_hint(free_bytes: int = _FREE_BYTES) -> str:
    return f"free {free_bytes >> 30} GiB or choose another disk with KVPROOF_HOME"


def begun(
    wanted: Place,
    scratch: Path,
    progress: Callable[[str], None],
    *,
    free_bytes: int = _FREE_BYTES,
    python: str = sys.executable,
) -> list[str]:
    """Make a virtual environment without packages; return the command of its pip."""
    free = shutil.disk_usage(wanted.directory.parent).free
    if free < free_bytes:
        place = str(wanted.directory.parent)
        raise UsageError(f"{free / 2**30:.1f} GiB are free at {place!r}", _space_hint(free_bytes))
    progress(f"building {wanted} in {wanted.directory} (1 to 5 minutes)")
    run_quietly([python, "-m", "venv", str(scratch)], "the virtual environment", hint="")
    own = str(scratch / "bin" / "python")
    return [own, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]


def mark(wanted: Place, scratch: Path, wheel: str = "") -> None:
    """Note with which lock a finished build was made."""
    marker = _Marker(_lock_hash(wanted), platform.python_version(), wheel)
    (scratch / _MARKER).write_bytes(msgspec.json.encode(marker))


def _build(
    wanted: EngineVersion, progress: Callable[[str], None], wheel: Path | None, scratch: Path
) -> None:
    pip = begun(wanted, scratch, progress)
    python = scratch / "bin" / "python"
    of = "locked" if wanted.locked else f"{wanted.lock.stem}'s, the nearest lock:"
    progress(f"installing {len(requirements(wanted))} packages, {of}")
    run_quietly([*pip, "install", *_EXACT, "-r", str(wanted.lock)], "the locked packages")
    if wheel is None:
        progress(f"fetching the wheel of {wanted.package}, for its Python files")
    downloads = scratch / "downloads"
    file = wheel or _downloaded(wanted, pip, downloads)
    _unpack(file, site_packages(scratch), _KEPT.get(wanted.engine, ()))
    shutil.rmtree(downloads, ignore_errors=True)
    progress("starting the engine and comparing its signatures with the adapter's")
    if not wanted.locked:
        _complete(wanted, python, pip, progress)
    verify(wanted, python)
    mark(wanted, scratch, wheel.name if wheel else "")


def _downloaded(wanted: EngineVersion, pip: Sequence[str], folder: Path) -> Path:
    command = [*pip, "download", *_EXACT, "--dest", str(folder), wanted.distribution]
    run_quietly(command, "the engine's wheel")
    return next(folder.glob("*.whl"))


_MOST_PACKAGES = 12
"""Packages that a release without a lock may need beyond those of the nearest lock."""


def _complete(
    wanted: EngineVersion, python: Path, pip: Sequence[str], progress: Callable[[str], None]
) -> None:
    """Add imports of the engine that the lock lacks; refuse the engine if its adapter must."""
    for _ in range(_MOST_PACKAGES):
        with _starting(wanted, python) as handle:
            found = fit.differences(handle)
        missing = [each.name for each in found if each.kind == "package"]
        needed = wheels.requirement(site_packages(python.parents[1]), wanted.distribution, missing)
        if not needed:
            break
        progress(f"installing {needed}, which it imports")
        more = ["--only-binary=:all:", "--constraint", str(wanted.lock), needed]
        run_quietly([*pip, "install", *more], f"{needed}, which {wanted} imports")
    fit.refuse(str(wanted), found)


_EXACT = ("--no-deps", "--only-binary=:all:")
"""Exactly the packages of the lock; nothing is compiled."""


def requirements(wanted: Place) -> list[str]:
    """Return the packages of a lock file, each with its version."""
    lines = wanted.lock.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's packages."""
    return next(environment.glob("lib/python*/site-packages"))


def run_quietly(command: Sequence[str], what: str, *, hint: str = _INDEX_HINT) -> None:
    """Run a command quietly. Raises UsageError with the last lines that it wrote."""
    with TemporaryDirectory(prefix="kvproof-") as scratch:
        code, written = _carried_out(command, scratch)
    if code == 0:
        return
    lines = [line for line in written.splitlines() if line.strip()]
    full = "No space left" in written
    message = "\n".join([f"cannot install {what}:", *lines[-6:]])
    raise UsageError(message, _space_hint() if full else hint)


def _carried_out(command: Sequence[str], scratch: str) -> tuple[int, str]:
    """Run a command to its end; an interrupt ends it with all that it has started."""
    process = subprocess.Popen(  # noqa: S603 - arguments are a lock file and names checked against it
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
        env={**_rustup_home(scratch), **os.environ, "TMPDIR": scratch},
    )  # fmt: skip
    with process:
        try:
            written, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, written


def _rustup_home(scratch: str) -> dict[str, str]:
    """Return where rustup may write in a home that has none: pip asks `rustc --version`."""
    return {} if (Path.home() / ".rustup").exists() else {"RUSTUP_HOME": scratch}


def _unpack(wheel: Path, destination: Path, kept: Sequence[str]) -> None:
    """Unpack `*.py`, the metadata, and the other files that the cache manager needs."""
    patterns = ("*.py", "*.dist-info/*", *kept)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if any(fnmatch(name, p) for p in patterns)]
        archive.extractall(destination, names)


def _starting(wanted: EngineVersion, python: Path) -> WorkerHandle:
    log = python.parents[1] / "verify.log"
    return WorkerHandle(str(wanted), python, wanted.factory, log, version=wanted.version)


def verify(wanted: EngineVersion, python: Path) -> None:
    """Start an engine once. Raises UsageError with its last lines if it does not start."""
    try:
        with _starting(wanted, python) as handle:
            handle.create(TargetConfig(num_blocks=8, block_size=handle.profile.block_sizes[0]))
    except TargetDied as death:
        tail = death.log.strip().splitlines()[-12:]
        hint = "its lock file does not fit this machine; please report this with the lines above"
        raise UsageError(
            "\n".join([f"{wanted} was installed but does not start: {death}", *tail]),
            hint if wanted.locked else "its adapter does not drive this release",
        ) from death


def put_in_place(directory: Path, scratch: Path) -> None:
    """Put a finished build in place, also of an outdated one."""
    old = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    scratch.rename(directory)
    shutil.rmtree(old, ignore_errors=True)
