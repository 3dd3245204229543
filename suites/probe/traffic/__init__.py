"""Requests among neighbours: a replayed trace, and situations that are brought about.

In: a trace, a server. Out: verdicts on answers and times.
Imports the probe's trials and session.
"""
