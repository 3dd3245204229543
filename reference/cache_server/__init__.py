"""Objects that several processes share through one server and its memory (G7, G8).

`core` decides, without sockets; `server` carries its messages and sees clients die; `client` is
the store that an engine uses. The layout of this package is that of docs/engine/cache-server.md.

In: messages of clients. Out: objects in shared memory, leases, counters.
Imports `core` and `stores`.
"""
