"""One module for each verb of the command line.

In: parsed options. Out: an exit code, and the records of the run.
Imports everything below the command line.
"""
