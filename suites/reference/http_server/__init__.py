"""The suite `http`: answers to clients of the HTTP server, over any history of requests.

The whole server runs in one thread, without sockets: clients are ASGI calls, an event loop that
never waits carries them, and the engine takes a step when the history contains one.

In: histories of clients. Out: verdicts. Imports `framework`, `engine` and `reference.server`.
"""
