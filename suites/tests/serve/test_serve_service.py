"""What lies between HTTP and the engine's thread."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from threading import Event

import pytest

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.migration import Moved
from kvproof.reference.engine.request_queue import Prompt
from kvproof.reference.server.engine_loop import ServedRequest
from kvproof.reference.server.errors import ApiError
from kvproof.reference.server.images import image_of
from kvproof.reference.server.language.language import SamplingOptions
from kvproof.reference.server.language.symbolic_text import SymbolicText
from kvproof.reference.server.language.template_variables import settable
from kvproof.reference.server.migration import Address, arrived, travelling
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.server.service import Service
from kvproof.suites.tests.patience import LONG

CACHE = CacheConfig(65, block_size=4, max_requests=2)


def service(**options: object) -> Service:
    language = SymbolicText(CACHE, max_len=64)
    engine = Engine(EngineConfig(CACHE), language.model)
    return Service(engine, language, ServerConfig(**({"max_waiting": 1} | options)))


def order(made: Service, name: str, most: int = 5) -> ServedRequest:
    prepared = made.language.prepare_text("a prompt")
    return ServedRequest(name, prepared, SamplingOptions(), most, ignore_ends=True)


def test_places_are_given_back_however_a_request_ends() -> None:
    made = service()
    with made.place(2), made.place(1), pytest.raises(ApiError) as full, made.place(1):
        pass
    assert (full.value.status, full.value.headers) == (429, {"Retry-After": "1"})
    assert (made.taken, made.turned_away) == (0, 1)
    with pytest.raises(ApiError) as never, made.place(4):
        pass
    assert never.value.status == 400


def test_questions_that_fail_fail_their_asker_only() -> None:
    async def ask() -> int:
        made = service()
        made.start()
        with pytest.raises(ZeroDivisionError):
            await made.between_steps(lambda: 1 // 0)
        try:
            return await made.between_steps(lambda: 7)
        finally:
            await made.stop()

    assert asyncio.run(ask()) == 7


def test_leaving_early_cancels_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits after its first tokens, so that no answer ends before its reader leaves."""

    async def leave() -> tuple[int, int]:
        made = service()
        reported, left, step = Event(), Event(), made.engine.step

        def step_until_told() -> list[Output]:
            assert not reported.is_set() or left.wait(LONG)
            outputs = step()
            if outputs:
                reported.set()
            return outputs

        monkeypatch.setattr(made.engine, "step", step_until_told)
        made.start()
        orders = [order(made, name, 40) for name in "ab"]
        async with aclosing(made.answers(orders)) as pieces:
            await anext(pieces)
        left.set()
        held = await made.between_steps(lambda: made.engine.cache.usage().held)
        await made.stop()
        return held, made.loop.outcomes["cancelled"]

    assert asyncio.run(leave()) == (0, 2)


def test_nothing_new_is_taken_while_the_server_ends() -> None:
    async def end() -> str:
        made = service(grace=0.0)
        made.start()
        made.drain()
        made.drain()
        with pytest.raises(ApiError, match="shutting down") as refused, made.place(1):
            pass
        await made.stop()
        return f"{refused.value.status} {refused.value.code}"

    assert asyncio.run(end()) == "503 shutting_down"


@pytest.mark.parametrize(
    ("prompt", "wanted", "most"),
    [(10, None, 54), (10, 54, 54), (10, 55, None), (63, None, 1), (64, None, None), (0, 1, None)],
)
def test_prompt_and_answer_fit_the_model(prompt: int, wanted: int | None, most: int | None) -> None:
    made = service()
    prepared = made.language.prepare_text("a" * prompt)
    if most is None:
        with pytest.raises(ApiError) as refused:
            made.most(prepared, wanted)
        assert refused.value.status == 400
    else:
        assert made.most(prepared, wanted) == most


def test_the_longest_prompt_is_an_option() -> None:
    made = service(max_prompt_tokens=5, max_tokens=7)
    assert made.most(made.language.prepare_text("abcde"), None) == 7
    with pytest.raises(ApiError, match="at most 5 are served"):
        made.most(made.language.prepare_text("abcdef"), None)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_an_image_is_decoded_from_its_url_alone() -> None:
    assert image_of(data_url(PNG), "url", 28) == (PNG, "image/png")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1/a.png", "nothing is fetched from a network"),
        (data_url(PNG, "image/svg+xml"), "has the type image/svg"),
        (data_url(PNG + b"x"), "is larger than the 28 bytes"),
        (data_url(PNG + bytes(20)), "is larger than the 28 bytes"),
        ("data:image/png;base64,@@@@", "is not base64"),
        (data_url(PNG, "image/jpeg"), "holds no image/jpeg file"),
    ],
)
def test_what_is_no_image_is_refused(url: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        image_of(url, "url", 28)
    assert (refused.value.status, refused.value.code) == (400, "invalid_image")


def test_variables_of_a_chat_template_but_those_of_the_server_can_be_set() -> None:
    assert settable({"default": "", "tool_use": ""}) == frozenset()
    pytest.importorskip("jinja2", reason="torch, which needs it, is not installed")
    think = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% endfor %}"
    assert settable(think + "{% if enable_thinking %}{{ eos_token }}{% endif %}") == {
        "enable_thinking"
    }
    assert settable("{% for %}") == frozenset()


def test_a_request_arrives_as_it_was_sent() -> None:
    moved = Moved(Prompt("r", (1, 2, 3), 8), (1, 2, 3, 4), 0, (), 7, None, None)
    data = travelling(moved, model="symbolic", sampling=SamplingOptions(), cached=2)
    found = arrived(data, SymbolicText(CACHE, max_len=64))
    assert (found.moved, found.cached, found.model) == (moved, 2, "symbolic")
    with pytest.raises(ApiError, match="within 10 tokens"):
        arrived(data, SymbolicText(CACHE, max_len=10))


def test_another_server_is_named_by_its_url() -> None:
    address = Address("http://127.0.0.1:8001", "a key")
    assert (address.connect().host, address.connect().port) == ("127.0.0.1", 8001)
    assert address.headers["authorization"] == "Bearer a key"
    for wrong in ("not a url", "http://x:99999", "http://x/v1", "http://a@x", "ftp://x"):
        with pytest.raises(ApiError, match="must be the URL of a server"):
            Address(wrong, "")
