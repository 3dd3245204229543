"""Routes of the server. Every answer that is not 200 has OpenAI's shape, also for wrong paths."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kvproof.reference.server.body import read
from kvproof.reference.server.errors import AUTHENTICATION, SERVER, ApiError
from kvproof.reference.server.metrics import make_registry
from kvproof.reference.server.migration import PATH, Address, Move, arrived
from kvproof.reference.server.request_options import Checker
from kvproof.reference.server.responding import Completion, Continuation, Responding
from kvproof.reference.server.service import Service
from kvproof.reference.server.unsupported import CHAT, COMPLETION
from kvproof.reference.server.wire import ChatBody, CompletionBody

LOG = logging.getLogger("kvproof.server")
GONE = 499
"""Status in logs for a client that disconnected before its request was read; it is never sent."""


def make_app(service: Service, *, model: str) -> FastAPI:
    """Return the ASGI application; `model` is the id that requests must name."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(title="kvproof", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app)
    _add_api(app, service, model)
    _add_operations(app, service)
    if service.config.admin_api_key:
        _add_admin(app, service, model)
    return app


def _add_api(app: FastAPI, service: Service, model: str) -> None:
    language = service.language
    checker = Checker(service.config, language.abilities, language.vocabulary)
    key = [Depends(_key_check(service.config.api_key))]

    @app.post("/v1/completions", dependencies=key)
    async def completions(request: Request) -> Response:
        body = read(await _body(request, service), CompletionBody, COMPLETION)
        _check_model(body.model, model)
        options = checker.completion(body)
        return Responding(Completion(service, options, model=model, chat=False))

    @app.post("/v1/chat/completions", dependencies=key)
    async def chat(request: Request) -> Response:
        body = read(await _body(request, service), ChatBody, CHAT)
        _check_model(body.model, model)
        options = checker.chat(body)
        return Responding(Completion(service, options, model=model, chat=True))

    described = {"id": model, "object": "model", "created": 0, "owned_by": "kvproof"}
    described["max_model_len"] = language.max_len

    @app.get("/v1/models", dependencies=key)
    async def models() -> Response:
        return _json({"object": "list", "data": [described]})

    @app.get("/v1/models/{name:path}", dependencies=key)
    async def one_model(name: str) -> Response:
        _check_model(name, model)
        return _json(described)


def _add_operations(app: FastAPI, service: Service) -> None:
    registry = make_registry(service)

    @app.get("/health")
    async def health() -> Response:
        """Answer at once, independent of the engine; 503 unless it can serve."""
        loop = service.loop
        running, waiting = loop.counts
        state = "dead" if loop.dead else "failing" if loop.failing else "ok"
        report = {
            "status": "stopping" if service.draining and state == "ok" else state,
            "error": loop.dead or loop.failing or None,
            "failed_steps": loop.failures,
            "running": running,
            "waiting": waiting,
        }
        return _json(report, 200 if report["status"] == "ok" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Read all figures between two steps, so that they belong together (B7)."""
        text = await service.between_steps(lambda: generate_latest(registry))
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def _add_admin(app: FastAPI, service: Service, model: str) -> None:
    admin = service.config.admin_api_key
    key = [Depends(_key_check(admin))]

    @app.post("/admin/move", dependencies=key)
    async def move(request: Request) -> Response:
        """Move all requests to another server; their clients stay connected to this one."""
        try:
            body = msgspec.json.decode(await _body(request, service), type=Move)
        except msgspec.MsgspecError as error:
            raise ApiError(400, f'{error}: send {{"to": "http://127.0.0.1:8001"}}') from None
        return _json(await service.move(Address(body.to, admin), model=model))

    @app.post(PATH, dependencies=key)
    async def receive(request: Request) -> Response:
        """Continue a request that another server has taken out."""
        found = arrived(await request.body(), service.language)
        _check_model(found.model, model)
        return Responding(Continuation(service, found))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return _json(error.body(), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}: {error.detail}"
        answer = ApiError(error.status_code, what, headers=error.headers)
        return _json(answer.body(), answer.status, answer.headers)

    @app.exception_handler(ClientDisconnect)
    async def client_gone(_: Request, error: ClientDisconnect) -> Response:
        del error
        return Response(status_code=GONE)

    @app.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> Response:
        message = f"a fault of the server: {type(error).__name__}"
        return _json(ApiError(500, message, kind=SERVER).body(), 500)


# --- what every request goes through ---


async def _body(request: Request, service: Service) -> bytes:
    """Read a JSON body. Raises ApiError 413, 415, ClientDisconnect."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"content-type {kind!r} must be application/json")
    most = service.config.max_body_bytes
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise _too_large(most)
    return bytes(data)


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {most} bytes", code="body_too_large",
        headers={"Connection": "close"},
    )  # fmt: skip


def _check_model(name: str, served: str) -> None:
    if name != served:
        message = f"model {name[:80]!r} is not served here; this one is: {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _key_check(key: str) -> Any:
    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if key and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            what = "is wrong" if given else "is missing: send Authorization: Bearer <key>"
            raise ApiError(
                401,
                f"the API key {what}",
                kind=AUTHENTICATION,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


def _json(content: object, status: int = 200, headers: Any = None) -> Response:
    body = msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")
