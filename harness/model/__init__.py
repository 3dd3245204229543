"""One model of content: records, visibility of each kind of group, fingerprints, chains.

Both oracles are built on it: the session of `harness.oracle`, which judges cache managers, and the
shadow device of `harness.whole_engine`, which judges engines with their own loop. The brute-force
oracles (`harness.oracle.longest_hit`, those of `suites/reference`) and the reference engine do not
import it: they state the rules a second time, so that a fault of this model shows.

In: tokens, spans, namespaces, kinds of groups. Out: fingerprints by position, positions that are
read, greedy answers. Imports nothing of kvproof; `records` and `visibility` need only the standard
library of Python 3.10, `fingerprints` and `chain` numpy too.
"""
