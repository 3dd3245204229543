"""Malformed requests to `kvproof serve`: bytes, heads, bodies, half requests, too many clients."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import time
from contextlib import ExitStack, suppress
from random import Random
from typing import NamedTuple

from kvproof.suites.tests.attack import rules
from kvproof.suites.tests.attack.materials import close_off, command, typed
from kvproof.suites.tests.attack.mutations import BYTES, change_json
from kvproof.suites.tests.attack.processes import Running, run
from kvproof.suites.tests.attack.rules import Broken
from kvproof.suites.tests.attack.session import Attempt, Session
from kvproof.suites.tests.attack.values import SECRET

SERVER = typed(
    "--model symbolic --port 0 --num-blocks 257 --block-size 4 --max-model-len 512 --max-tokens 64 "
    "--max-body-bytes 65536 --max-requests 8 --max-waiting 8 --grace 2"
)
BATCH = 40
"""Requests of one attack."""
CLIENTS = 150
"""Connections of the attack on descriptors."""
DESCRIPTORS = 64
MOST_LOG = 100_000
"""Characters on standard error in a minute at most."""
COMPLETION = {"model": "symbolic", "prompt": "once upon", "max_tokens": 4}
CHAT = {
    "model": "symbolic",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "max_tokens": 4, "stream": False, "logprobs": True, "top_logprobs": 2, "stop": ["x"], "seed": 1,
    "temperature": 0.5, "top_p": 0.9, "cache_salt": "salt",
}  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions")
HEADS = (
    "Content-Length: -1", "Content-Length: 1e3", "Content-Length: 99999999999999999999",
    "Content-Length: 0", "Content-Length: 5\r\nContent-Length: 6", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Expect: 100-continue", "X: " + "x" * 100_000,
    "\r\n".join(f"X{i}: x" for i in range(5000)), "Host:", ": x", "X\0: x", "X: \0",
    "Content-Encoding: gzip", "Connection: upgrade\r\nUpgrade: websocket", "Authorization: x",
    "Authorization: Bearer \xff", "Content-Type: application/json; charset=utf-16", " folded: x",
)  # fmt: skip

FIRST_LINES = (
    "GET / HTTP/9.9", "POST", "", "\0", "GET " + "/x" * 60_000 + " HTTP/1.1",
    "GET /../../etc/passwd HTTP/1.1", "GET /metrics HTTP/1.1", "PRI * HTTP/2.0",
    "GET /%00%ff HTTP/1.1", "POST /v1/completions HTTP/1.0",
)  # fmt: skip


class Answer(NamedTuple):
    """The server's answer: its status, 0 for a connection that was closed without one."""

    status: int
    text: str


def attack(session: Session, random: Random) -> Attempt:
    """Start a server, attack it in one way, and see that it still answers and ends in order."""
    kind = random.choice((_requests, _requests, _half_requests, _too_many))
    limits = {"descriptors": DESCRIPTORS} if kind is _too_many else {}
    with session.worlds.world() as folder:
        made = command(session.verb("serve"), SERVER, folder, limits=limits, patience=10.0)
        close_off(folder)
        inputs = rules.contents(folder)
        running = session.start(made)
        host = _host(running)
        broken, codes = [], ["0"]
        if host:
            broken, codes = _attacked(kind, host, random)
        running.signal(signal.SIGTERM)
        outcome = run(running, made, folder / "none")
        if not host:
            broken.append(Broken("start", outcome.err[-300:]))
        if len(outcome.err) > MOST_LOG:
            broken.append(Broken("long log", f"{len(outcome.err)} characters"))
        outcome = outcome._replace(err=outcome.err[-2000:], stopped=False)
        found = list(rules.judge(made, outcome, verb="serve", inputs=inputs, codes=frozenset({0})))
    name = kind.__name__.strip("_").replace("_", " ")
    return Attempt(
        f"kvproof serve: {name}", tuple(codes), (*broken, *found), 1, 0, outcome.err[-2500:]
    )


def _host(running: Running) -> tuple[str, int] | None:
    deadline = time.monotonic() + 60
    while running.code() is None and time.monotonic() < deadline:
        running.read(0.05)
        if found := re.search(r"http://([\d.]+):(\d+)", running.out):
            return found[1], int(found[2])
    return None


def _attacked(
    kind: object, host: tuple[str, int], random: Random
) -> tuple[list[Broken], list[str]]:
    before = _good(host)
    if before.status != 200:
        return [Broken("no answer", f"at the start: {before}")], ["0"]
    broken, codes = kind(host, random)
    after = _good(host)
    if after.status != 200 or _choice(after) != _choice(before):
        broken.append(Broken("no answer", f"after it: {after}"[:300]))
    return broken, codes


def _choice(answer: Answer) -> object:
    return json.loads(answer.text)["choices"]


def _good(host: tuple[str, int]) -> Answer:
    """Send a valid request; it has ten seconds, a recovering server some more tries."""
    answer = Answer(0, "")
    for _ in range(10):
        connection = http.client.HTTPConnection(*host, timeout=10)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
        try:
            connection.request("POST", PATHS[0], json.dumps(COMPLETION), headers)
            reply = connection.getresponse()
            answer = Answer(reply.status, reply.read().decode(errors="replace"))
        except (OSError, http.client.HTTPException) as error:
            answer = Answer(0, f"{type(error).__name__}: {error}")
        finally:
            connection.close()
        if answer.status == 200:
            break
        time.sleep(0.3)
    return answer


def _requests(host: tuple[str, int], random: Random) -> tuple[list[Broken], list[str]]:
    """Malformed requests, one connection each."""
    broken, codes = [], []
    for _ in range(BATCH):
        data = _request(random)
        answer = _sent(host, data)
        codes.append(str(answer.status))
        shown = data[:200] + data[-100:]
        if answer.status >= 500 and answer.status != 503:
            broken.append(Broken("status", f"{answer.status} for {shown!r}"))
        if "Traceback" in answer.text or SECRET in answer.text:
            broken.append(Broken("answer", f"{answer.text[:200]!r} for {shown!r}"))
    return broken, codes


def _request(random: Random) -> bytes:
    path = random.choice(PATHS)
    body = json.dumps(COMPLETION if path == PATHS[0] else CHAT)
    body = change_json(body, random)[:80_000]
    data = body.encode("utf-8", "surrogatepass")
    if random.random() < 0.2:
        data = random.choice(BYTES)(data, random)
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json",
            f"Authorization: Bearer {SECRET}", "Connection: close"]  # fmt: skip
    how = random.random()
    length = len(data) if how < 0.85 else random.choice((0, len(data) // 2, len(data) + 10, 10**9))
    head.append(f"Content-Length: {length}")
    if random.random() < 0.2:
        head.insert(random.randrange(1, len(head)), random.choice(HEADS))
    if random.random() < 0.1:
        head[0] = random.choice(FIRST_LINES)
    whole = "\r\n".join([*head, "", ""]).encode("latin-1") + data
    return random.choice(BYTES[:4])(whole, random) if random.random() < 0.15 else whole


def _sent(host: tuple[str, int], data: bytes) -> Answer:
    text = b""
    with suppress(OSError), socket.create_connection(host, 5) as connection:
        connection.settimeout(2)
        connection.sendall(data)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        while len(text) < 1 << 20 and (piece := connection.recv(1 << 16)):
            text += piece
    found = re.match(rb"HTTP/1\.\d (\d+)", text)
    return Answer(int(found[1]) if found else 0, text.decode(errors="replace"))


def _half_requests(host: tuple[str, int], random: Random) -> tuple[list[Broken], list[str]]:
    """Open connections that send a part and wait; the next client must not notice."""
    return _crowd(host, random, 60)


def _too_many(host: tuple[str, int], random: Random) -> tuple[list[Broken], list[str]]:
    """Open more connections than there are descriptors, then leave."""
    return _crowd(host, random, CLIENTS, full=True)


def _crowd(
    host: tuple[str, int], random: Random, count: int, *, full: bool = False
) -> tuple[list[Broken], list[str]]:
    codes = []
    with ExitStack() as stack:
        for _ in range(count):
            data = _request(random)
            with suppress(OSError):
                connection = stack.enter_context(socket.create_connection(host, 0.2))
                connection.sendall(data[: random.randrange(min(len(data), 300) + 1)])
                codes.append("open")
        time.sleep(1.0 if full else 0.2)
        answer = Answer(200, "") if full else _good(host)
        broken = [] if answer.status == 200 else [Broken("no answer", f"in a crowd: {answer}")]
    return broken, codes
