"""Sets of options that are too long for a signature: one frozen dataclass for each verb.

In: fields, each an option, with its help in the string below it. Out: the values, for the action of
a verb. Imports nothing but cyclopts and constants, so `--help` stays quick.
"""
