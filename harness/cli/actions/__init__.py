"""The work of the verbs. In: checked options and a console. Out: records, reports, an exit code.

Verbs import an action only when they are called, because suites, numpy and reports take half a
second to load. May import every layer below; nothing but `harness.cli.verbs` imports it.
"""
