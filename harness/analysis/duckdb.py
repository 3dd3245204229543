"""SQL over many runs: DuckDB as a reader of run directories, with the extra duckdb."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.errors import UsageError


class Answer(NamedTuple):
    """Columns and rows of a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(directory: Path, sql: str) -> Answer:
    """Run SQL on the views `runs` (run.json) and `events` (all of events.jsonl, by file).

    Columns of `events`: `run` (the directory's name), `event` (its kind), `at`, and `data`, the
    event as JSON. Raises UsageError if DuckDB is missing or refuses the query.
    """
    if find_spec("duckdb") is None:
        raise UsageError("--sql needs DuckDB", "pip install 'kvproof[duckdb]'")
    duckdb = import_module("duckdb")
    connection = duckdb.connect()
    try:
        _views(connection, directory)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        found = connection.execute(sql)
        return Answer([column[0] for column in found.description], found.fetchall())
    except duckdb.Error as error:
        why = " ".join(str(error).split())
        raise UsageError(f"DuckDB refuses {sql!r}: {why}", "views are runs and events") from error
    finally:
        connection.close()


def _views(connection: Any, directory: Path) -> None:
    """Tables in memory: once they are read, the query may touch no file any more."""
    place = str(directory).replace("'", "''")
    name = "regexp_extract(filename, '([^/]+)/[^/]+$', 1)"
    connection.execute(
        f"CREATE TABLE runs AS SELECT {name} AS run, * EXCLUDE filename "  # noqa: S608 - quoted above
        f"FROM read_json('{place}/**/run.json', filename=true, union_by_name=true, "
        "columns={id: 'VARCHAR', verb: 'VARCHAR', started: 'TIMESTAMP', seed: 'BIGINT', "
        "commit: 'VARCHAR', versions: 'JSON', hardware: 'JSON', config: 'JSON'})"
    )
    connection.execute(
        f"CREATE TABLE events AS SELECT {name} AS run, json->>'event' AS event, "  # noqa: S608 - quoted above
        "CAST(json->>'at' AS DOUBLE) AS at, json AS data "
        f"FROM read_json_objects('{place}/**/events.jsonl', filename=true, "
        "format='newline_delimited', ignore_errors=true)"
    )
