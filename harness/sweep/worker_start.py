"""Starts the worker of a sweep: it ends with its host even while torch is still imported."""

from __future__ import annotations

from kvproof.harness.isolation.host import Host


def main() -> None:
    """Serve until the host closes the pipe."""
    host = Host()
    from kvproof.harness.sweep.worker_main import serve  # imports torch, which takes seconds

    serve(host)


if __name__ == "__main__":
    main()
