"""`kvproof serve`: the reference engine with an OpenAI-compatible HTTP interface."""

from __future__ import annotations

import logging
import signal
from socket import socket
from typing import TYPE_CHECKING, Any

from kvproof.harness.cli.actions.serving.models import SYMBOLIC, Built, hugging_face, symbolic
from kvproof.harness.cli.arguments.serve import ServeOptions
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.secrets import read_secret
from kvproof.harness.errors import Exit, UsageError
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.quiet_log import FewOfAKind

if TYPE_CHECKING:
    from kvproof.reference.server.service import Service

HINT = "see kvproof serve --help"


def serve(options: ServeOptions) -> None:
    """Serve a model over HTTP until a signal; Ctrl-C is raised again. Raises UsageError."""
    _log()
    try:
        key = read_secret("--api-key-file", options.api_key_file) or options.api_key
        admin = read_secret("--admin-api-key-file", options.admin_api_key_file)
        admin = admin or options.admin_api_key
        config = options.pick(ServerConfig, api_key=key, admin_api_key=admin)
        built = symbolic(options) if options.model == SYMBOLIC else hugging_face(options)
        bound = _server().listen(config)
    except ValueError as error:
        raise UsageError(str(error), getattr(error, "hint", "") or HINT) from error
    _run(built, config, bound, options.served_model_name or built.language.name)


def _log() -> None:
    """Write warnings to standard error, few of each kind: a minute of an attack is some lines."""
    handler = logging.StreamHandler()
    handler.addFilter(FewOfAKind())
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", handlers=[handler])


def _run(built: Built, config: ServerConfig, bound: socket, name: str) -> None:
    running, console = _server(), standard_output()

    def ready() -> None:
        cache = built.engine.config.cache
        served = f"{name} is served on {running.url_of(bound)}/v1"
        console.print(served, markup=False, highlight=False)
        size = f"{cache.num_blocks - 1} blocks of {cache.block_size} tokens"
        console.print(f"  {size}; Ctrl-C or SIGTERM ends it", highlight=False)
        for note in built.notes:
            console.print(f"  {note}", markup=False, highlight=False)
        if not running.is_loopback(bound):
            key = "with the API key" if config.api_key else "by anybody: there is no --api-key-file"
            console.print(f"  reachable from other machines, {key}", style="bold yellow")

    service = _service(built, config)
    ended = running.run(service, bound, model=name, ready=ready)
    if service.loop.dead:
        raise SystemExit(Exit.HARNESS)
    if built.engine.config.disk_tier or built.remote:
        console.print("writing the cache to the tiers below", highlight=False)
    built.close()
    if ended == signal.SIGINT:
        raise KeyboardInterrupt


def _service(built: Built, config: ServerConfig) -> Service:
    from kvproof.reference.server.service import Service

    return Service(built.engine, built.language, config)


def _server() -> Any:
    try:
        from kvproof.reference.server import running
    except ImportError as error:
        raise UsageError(
            f"kvproof serve needs a package that is not installed: {error.name or error}",
            "pip install 'kvproof[serve]'",
        ) from error
    return running
