"""The rooms of engines: a folder holds all that is known of one engine.

In: records, predicates, findings, histories. Out: the known failures of its targets. A room imports
`suites.framework` and the harness; nothing imports a room: `framework.rooms` finds its folder.
"""
