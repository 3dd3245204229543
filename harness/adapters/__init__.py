"""One file per engine. An adapter imports its engine lazily and never the rest of the harness."""
