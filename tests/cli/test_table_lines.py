"""Tables that need no wrapping are written line by line, and look as if rich had written them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.cli import output

CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12).map(str.strip)
ROWS = st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_lines_are_those_of_rich(
    capsys: pytest.CaptureFixture[str], rows: list[tuple[str, str, str]]
) -> None:
    names = ("NODE", "GPUs", "이름")
    widths = [max(map(output.cell_len, (name, *cells))) for name, *cells in zip(names, *rows, strict=True)]
    columns = list(zip(names, widths, (False, True, False), strict=True))
    output._print_lines(output.console(), columns, rows, 2)
    ours = capsys.readouterr().out
    output._print_wrapped(output.console(), [(*column, False) for column in columns], rows, 2)
    assert ours.split("\n") == capsys.readouterr().out.split("\n")
