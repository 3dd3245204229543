"""The suite `http`: what clients of the HTTP server are told, by any history of asking and leaving.

The whole server runs in one thread, without sockets: clients are ASGI calls, an event loop that
never waits carries them, and the engine takes a step when the history says so.

In: histories of clients. Out: verdicts. Imports `framework`, `engine` and `reference.server`.
"""
