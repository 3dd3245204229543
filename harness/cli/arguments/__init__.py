"""Sets of options that are too long for a signature: one frozen dataclass for each verb.

Each field is an option, and the string under it is its help. A verb reads one from the command
line, its action gets it. Imports nothing but cyclopts and constants, so `--help` stays quick.
"""
