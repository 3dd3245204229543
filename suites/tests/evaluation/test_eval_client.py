"""Whatever a server does becomes one result of the right class, within a bounded time."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.eval.run.server import free_port
from kvproof.harness.errors import UsageError
from kvproof.harness.http import response
from kvproof.harness.http.client import Aborted, HttpClient
from kvproof.harness.http.completion import Chance, Malformed, Usage, parse_completion
from kvproof.harness.http.completion_client import CompletionClient
from kvproof.suites.tests.evaluation.eval_server import Server, scripted
from kvproof.suites.tests.patience import LONG, until

SAMPLE = generate(GeneratorOptions(samples=1, max_tokens=2000)).samples[0]
PROMPT = own_prompts().render(SAMPLE)
RIGHT = f"The correct answer is ({SAMPLE.answer})."


def client(server: Server, **settings: Any) -> CompletionClient:
    return CompletionClient(server.url, **{"timeout": 20.0, "retries": 0, **settings})


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("asks", [True, False])
def test_an_answer_arrives_with_all_that_the_server_tells(*, asks: bool, streams: bool) -> None:
    with scripted(stream=streams) as server:
        reply = client(server, stream=asks).ask(PROMPT)
        again = client(server, stream=asks).ask(PROMPT)
    assert (reply.outcome, reply.text, reply.finish_reason) == ("answered", RIGHT, "stop")
    assert (reply.tries, reply.faults) == (1, ())
    total = len(PROMPT) // 4
    assert reply.usage == Usage(prompt_tokens=total, completion_tokens=6, cached_tokens=0)
    assert again.usage.cached_tokens == len(PROMPT) // 64 * 16
    assert (reply.first_token is not None) == (asks and streams)
    assert 0 < (reply.first_token or reply.seconds) <= reply.seconds


def test_a_model_may_choose_to_say_nothing() -> None:
    """That is an answer, and invalid; being cut off before the first word is none."""
    with scripted(always="silent") as server:
        reply = client(server, retries=1).ask(PROMPT)
    assert (reply.outcome, reply.text, reply.tries) == ("answered", "", 1)
    assert reply.usage.prompt_tokens == 9


@pytest.mark.parametrize("streams", [True, False])
def test_log_probabilities_arrive_where_they_are_asked_for(*, streams: bool) -> None:
    with scripted(stream=streams) as server:
        without = client(server).ask(PROMPT)
        reported = client(server, fields={"logprobs": True}).ask(PROMPT)
    assert without.logprobs == ()
    halves = [RIGHT[: len(RIGHT) // 2], RIGHT[len(RIGHT) // 2 :]] if streams else [RIGHT]
    assert reported.logprobs == tuple(-len(word) / 8 for half in halves for word in half.split())


@pytest.mark.parametrize("reported", ["-" + "9" * 400, "true", '"-1"', "null"])
def test_a_log_probability_that_is_none_is_not_told(reported: str) -> None:
    content = f'[{{"logprob": -0.5}}, {{"logprob": {reported}}}]'
    choice = f'{{"message": {{"content": "x"}}, "logprobs": {{"content": {content}}}}}'
    found = parse_completion(f'{{"choices": [{choice}]}}'.encode())
    assert (found.text, found.logprobs) == ("x", ())


def test_a_completion_of_a_text_has_tokens_with_the_likeliest_ones() -> None:
    text = b"""{"choices": [{"text": "ab", "token_ids": [5, 6], "logprobs": {"tokens": ["a", "b"],
      "token_logprobs": [null, -0.5], "top_logprobs": [null, {"b": -0.5, "c": null}]}}],
      "prompt_token_ids": [1, 2]}"""
    found = parse_completion(text, "text")
    assert found.tokens == (Chance("a"), Chance("b", -0.5, (("b", -0.5),)))
    assert (found.text, found.ids, found.prompt_ids) == ("ab", (5, 6), (1, 2))
    plain = parse_completion(b'{"choices": [{"text": "ab"}]}', "text")
    assert plain.tokens == (Chance("a"), Chance("b")), "characters where there are no tokens"


@pytest.mark.parametrize(
    "choice",
    [
        '{"message": {"content": "a"}}',
        '{"text": 7}',
        '{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": []}}',
        '{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": ["x"]}}',
    ],
)
def test_no_completion_of_a_text_is_malformed(choice: str) -> None:
    with pytest.raises(Malformed, match=r"completion"):
        parse_completion(f'{{"choices": [{choice}]}}'.encode(), "text")


def test_a_request_has_what_it_should_and_nothing_else() -> None:
    fields = {"model": "m", "temperature": 0.0, "max_tokens": 5, "seed": 3}
    with scripted() as server:
        client(server, fields=fields, key="s3cret").ask(PROMPT)
        client(server, stream=False).ask(PROMPT)
    message = {"messages": [{"role": "user", "content": PROMPT}]}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    assert server.bodies == [fields | message | streamed, message]
    assert server.headers[0]["authorization"] == "Bearer s3cret"
    assert "authorization" not in server.headers[1]


@pytest.mark.parametrize(
    ("fault", "outcome", "message"),
    [
        ("500", "server_error", '500 {"error": {"message": "injected"}}'),
        ("503", "server_error", "503 "),
        ("429", "server_error", "429 "),
        ("empty", "empty", "an answer without text, finish reason length"),
        ("drop", "dropped", "RemoteDisconnected"),
        ("cut", "dropped", "the connection ended inside the answer"),
        ("short", "dropped", "the connection ended inside the answer"),
        ("error event", "server_error", "an error instead of an answer: out of memory"),
        ("garbage", "malformed", "not JSON: '<html>it works</html>'"),
        ("shape", "malformed", "the content is no text"),
        ("deep", "malformed", "nested too deeply: '[[["),
    ],
)
def test_a_fault_is_tried_again_and_then_has_its_class(
    fault: str, outcome: str, message: str
) -> None:
    with scripted(always=fault) as server:
        reply = client(server, retries=1).ask(PROMPT)
    assert (reply.outcome, reply.tries, len(reply.faults)) == (outcome, 2, 2)
    assert message in reply.faults[0]
    assert len(server.prompts) == 2


@pytest.mark.parametrize("fault", ["500", "429", "empty", "drop", "cut", "garbage"])
def test_a_fault_that_passes_leaves_a_whole_answer(fault: str) -> None:
    with scripted(faults={0: fault}) as server:
        reply = client(server, retries=2).ask(PROMPT)
    assert (reply.outcome, reply.text, reply.tries) == ("answered", RIGHT, 2)
    assert len(reply.faults) == 1


@pytest.mark.parametrize("status", ["400", "404", "413", "422"])
def test_a_request_that_is_refused_is_not_repeated(status: str) -> None:
    with scripted(always=status) as server:
        reply = client(server, retries=5).ask(PROMPT)
    assert (reply.outcome, reply.tries) == ("refused", 1)
    assert len(server.prompts) == 1


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_a_slow_server_costs_no_more_than_the_timeout(fault: str) -> None:
    with scripted(always=fault) as server:
        reply = client(server, timeout=0.3).ask(PROMPT)
    assert (reply.outcome, reply.faults) == ("timeout", ("timeout: no answer within 0.3 s",))


def test_a_server_that_is_not_there_is_a_dropped_connection() -> None:
    reply = CompletionClient(f"http://127.0.0.1:{free_port()}/v1", retries=0).ask("?")
    assert reply.outcome == "dropped"
    assert "ConnectionRefusedError" in reply.faults[0]


@pytest.mark.parametrize(
    ("reported", "problem"),
    [
        (10**9, f"{10**9} cached tokens of a prompt of {len(PROMPT) // 4}"),
        (-1, "cached_tokens is -1, no count"),
        ("many", "cached_tokens is 'many', no count"),
        (True, "cached_tokens is True, no count"),
        (0.5, "cached_tokens is 0.5, no count"),
        (None, ""),
        ("none", ""),
    ],
)
def test_a_count_that_cannot_be_true_is_not_believed(reported: object, problem: str) -> None:
    with scripted(usage=reported) as server:
        reply = client(server).ask(PROMPT)
    assert reply.outcome == "answered"
    assert reply.usage.cached_tokens is None
    assert reply.usage.problem == problem
    assert reply.usage.prompt_tokens == len(PROMPT) // 4


def test_closing_ends_what_is_under_way() -> None:
    with scripted(always="slow") as server:
        asking = client(server, retries=3)
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                asking.ask(PROMPT)
            except Aborted as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: server.prompts)
        asking.close()
        thread.join(LONG / 2)
        assert not thread.is_alive()
    assert len(failed) == 1


def test_the_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with scripted() as server:
        assert client(server).ask(PROMPT).outcome == "answered"


def test_bytes_that_are_no_http_are_a_dropped_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_babble, args=(listener,))
        thread.start()
        reply = CompletionClient(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", retries=0).ask(
            "?"
        )
        thread.join()
    assert (reply.outcome, "BadStatusLine" in reply.faults[0]) == ("dropped", True)


def _babble(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"hello\r\n\r\n")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/v1", "http://", "http://x:y/v1", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is no address of a server"):
        CompletionClient(url)


def test_an_ipv6_address_without_a_port_is_asked_at_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """http.client reads a port out of `::1` unless it is given one."""
    asked: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    for url in ("http://[::1]/v1", "http://[::1]:8000/v1", "https://example.org/v1"):
        with pytest.raises(ConnectionRefusedError):
            HttpClient(url).get("/health")
    assert asked == [("::1", 80), ("::1", 8000), ("example.org", 443)]


def test_a_document_that_never_ends_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever awaits a server suppresses those, and tries again."""
    monkeypatch.setattr(response, "_MOST_BYTES", 100)
    with scripted() as server, pytest.raises(OSError, match="more than 100 bytes"):
        HttpClient(server.url).get("/long")


def test_an_answer_that_never_ends_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "_MOST_BYTES", 100)
    with scripted() as server:
        reply = client(server).ask(PROMPT)
    assert (reply.outcome, "more than 100 bytes" in reply.faults[0]) == ("malformed", True)
