"""Records the cache of a running engine, and judges it afterwards.

`codec`, `rotation`, `log_writer`, `import_hook` and the hooks of each engine run inside the engine
and need only the standard library of Python 3.10. The rest runs where kvproof does.

In: calls of a running engine. Out: a recording, and its verdict. Imports `oracle` and `records`;
inside the engine's process only the standard library.
"""

from __future__ import annotations

from pathlib import Path


def boot_folder() -> Path:
    """Return the folder that starts the recorder in each Python that has it on its path."""
    return Path(__file__).resolve().parent / "boot"
