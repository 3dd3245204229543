"""The name of `kvproof.suites.faults.eval_server` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.suites.faults import eval_server

if __name__ == "__main__":
    eval_server.main(sys.argv[1:])
else:
    sys.modules[__name__] = eval_server
