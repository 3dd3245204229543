"""`kvproof doctor`."""

from __future__ import annotations

from rich.markup import escape

from kvproof.harness.cli.output import standard_output, table_of
from kvproof.harness.errors import Exit
from kvproof.harness.isolation.doctor import diagnose


def doctor() -> int:
    """Print every finding; returns the exit code, 2 if one of them is a problem."""
    findings = diagnose()
    table = table_of("", "what", "detail", "how to get it")
    for finding in findings:
        table.add_row(*map(escape, (finding.state, finding.name, finding.detail, finding.command)))
    standard_output().print(table)
    problem = any(finding.state == "problem" for finding in findings)
    return Exit.USAGE if problem else Exit.PASS
