"""Two whole engines and the traffic between them: one prefills, the other decodes.

In: histories as for one engine, with words for what happens to copies and messages on their way.
Out: the same findings. `wire` has messages and copies, `driver` the history. Imports what
`harness.whole_engine` imports, and that package.
"""
