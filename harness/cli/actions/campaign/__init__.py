"""`kvproof fuzz`: work units over processes or a Ray cluster, each claimed and recorded once.

In: targets, a level and the settings of a campaign; out: a record and an exit code. May import
every layer below the command line.
"""
