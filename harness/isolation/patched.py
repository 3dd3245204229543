"""Environments of a patched engine: `vllm==0.33.0+mine`, from the released one and a diff.

Packages that the diff changes are copied, all others are links: the released environment stays as
it is. The build's name stands in the package's own metadata, and a digest of the diff in its list
of files, so that no certificate takes it for the release.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.environments import EngineVersion


def install(spec: str, patch: Path, *, progress: Callable[[str], None]) -> Path:
    """Build the environment of `engine==release+name`; returns its directory.

    `patch` is a unified diff with paths below site-packages. Raises UsageError for a spec without a
    name of its own, and for a diff that does not apply.
    """
    wanted = environments.parse(spec)
    if wanted.version == wanted.public:
        raise UsageError(
            f"a patched {spec} needs a name of its own", f"for example {spec}+mine --patch {patch}"
        )
    if not patch.is_file():
        raise UsageError(f"--patch {str(patch)!r} is no file", "a unified diff")
    released = EngineVersion(wanted.engine, wanted.public)
    environments.install(str(released), progress=progress)
    build = partial(_build, released, wanted, patch.resolve())
    return environments.made(wanted, build, progress, anew=True)


def _build(released: EngineVersion, wanted: EngineVersion, patch: Path, scratch: Path) -> None:
    there = environments.site_packages(released.directory)
    packages = scratch / there.relative_to(released.directory)
    packages.mkdir(parents=True)
    (scratch / "bin").mkdir()
    (scratch / "bin" / "python").symlink_to((released.directory / "bin" / "python").resolve())
    shutil.copy(released.directory / "pyvenv.cfg", scratch)
    name = environments.distribution_of(wanted.engine).replace("-", "_")
    info = next(there.glob(f"{name}-*.dist-info"))
    copied = {info.name, *_changed(patch, there)}
    for each in there.iterdir():
        if each.name in copied and each.is_dir():
            shutil.copytree(each, packages / each.name)
        elif each.name in copied:
            shutil.copy2(each, packages)
        else:
            (packages / each.name).symlink_to(each)
    git(packages, "apply", str(patch))
    _name(packages / info.name, wanted.version, patch)
    environments.verify(wanted, scratch / "bin" / "python")
    environments.mark(wanted, scratch, patch.name)


def _changed(patch: Path, packages: Path) -> set[str]:
    """Return the packages, or modules, that a diff changes."""
    rows = git(packages, "apply", "--numstat", "-z", str(patch)).split("\0")
    return {row.split("\t")[2].partition("/")[0] for row in rows if row.count("\t") == 2}


def _name(info: Path, version: str, patch: Path) -> None:
    metadata, record = info / "METADATA", info / "RECORD"
    text = metadata.read_text(encoding="utf-8")
    named = re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1)
    metadata.write_text(named, encoding="utf-8")
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    with record.open("a", encoding="utf-8") as lines:
        lines.write(f"{patch.name},sha256={digest},\n")


def git(folder: Path, *arguments: str) -> str:
    """Run git outside of every repository, so that it follows no link out of the folder.

    Returns its output. Raises UsageError with its first lines where it fails.
    """
    line: Sequence[str] = ["git", *arguments]
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    try:
        done = subprocess.run(  # noqa: S603 - git, and the diff that the user names
            line,
            cwd=folder,
            env=alone,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise UsageError(f"git does not run: {error.strerror}", "install git") from error
    if done.returncode:
        words = "; ".join(done.stderr.strip().splitlines()[:3])
        raise UsageError(f"the diff does not apply: {words}", "make it against this very release")
    return done.stdout
