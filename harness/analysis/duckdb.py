"""SQL over many runs: DuckDB as a reader of run directories, with the extra duckdb."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.harness.records.below import files_below
from kvproof.harness.records.run_directory import EVENTS, GIVE


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
    name = "regexp_extract(filename, '([^/]+)/[^/]+$', 1)"
    connection.execute(
        f"CREATE TABLE runs AS SELECT {name} AS run, * EXCLUDE filename "  # noqa: S608 - quoted by _files
        f"FROM read_json({_files(directory, 'run.json')}, filename=true, union_by_name=true, "
        "columns={id: 'VARCHAR', verb: 'VARCHAR', started: 'TIMESTAMP', seed: 'BIGINT', "
        "commit: 'VARCHAR', versions: 'JSON', hardware: 'JSON', config: 'JSON'})"
    )
    connection.execute(
        f"CREATE TABLE events AS SELECT {name} AS run, json->>'event' AS event, "  # noqa: S608 - quoted by _files
        "CAST(json->>'at' AS DOUBLE) AS at, json AS data "
        f"FROM read_json_objects({_files(directory, EVENTS)}, filename=true, "
        "format='newline_delimited', ignore_errors=true)"
    )


def _files(directory: Path, name: str) -> str:
    """Return a list in SQL: DuckDB itself would wait for a pipe of that name."""
    found = [path for path in files_below(directory, name) if path.is_file()]
    if not found:
        raise UsageError(f"no {name} below {str(directory)!r}", GIVE)
    quoted = (str(path).replace("'", "''") for path in found)
    return "[" + ", ".join(f"'{path}'" for path in quoted) + "]"
