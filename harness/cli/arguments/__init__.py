"""Option sets that are too long for a signature: one frozen dataclass for each verb.

In: fields, each an option with its help in the string below. Out: the values, for the verb's
action. Imports nothing but cyclopts and constants, so `--help` stays quick.
"""
