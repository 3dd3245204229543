"""Digest of a model's weights: answers of other weights are never compared."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.opening import opened

_KINDS = ("*.safetensors", "pytorch_model*.bin", "*.gguf", "*.pt", "*.pth")
"""Files of weights; the first kind that a folder holds counts, as loaders choose."""

_BLOB = re.compile(r"[0-9a-f]{64}")
"""Name of a large file in the cache of the Hugging Face hub: its SHA-256."""


def weights_files(model: str) -> list[Path]:
    """Files with the weights of a local folder or file; none for a name, or a model without."""
    place = Path(model)
    if not model or not place.exists():
        return []
    if place.is_file():
        return [place]
    found = (sorted(place.glob(kind)) for kind in _KINDS)
    return next((files for files in found if files), [])


def weights_digest(model: str) -> str:
    """SHA-256 of the names and digests of all weight files; empty if `model` is no local one.

    Raises UsageError for a file that cannot be read.
    """
    files = weights_files(model)
    whole = hashlib.sha256()
    for each in files:
        whole.update(f"{each.name} {_digest(each)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest() if files else ""


def _digest(file: Path) -> str:
    """Read one file, or take the name that the hub's cache gives its content."""
    try:
        if file.is_symlink() and _BLOB.fullmatch(name := file.resolve(strict=True).name):
            return name
        with opened(file) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            f"cannot read the weights {str(file)!r}: {error.strerror}",
            "give --model a folder that can be read, or the name of a served model",
        ) from error
