"""Commands work on terminals whose encoding lacks some characters."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.cli.encoding import replace_unencodable

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("encoding", ["latin1", "ascii", "cp1252", "utf-8"])
def test_characters_that_the_encoding_lacks_are_replaced(encoding: str):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    replace_unencodable(stream)
    stream.write("– → … ▁█ é 학\ud800")
    stream.flush()
    plain = {"latin1": "- -> ... 18 é", "ascii": "- -> ... 18 \\xe9", "cp1252": "– -> … 18 é"}
    expected = f"{plain.get(encoding, '– → … ▁█ é')} " + ("학" if encoding == "utf-8" else "\\ud559")
    assert raw.getvalue().decode(encoding) == expected + "\\ud800"


_PRINT = """
from slurm_gpu.cli.encoding import replace_unencodable
from slurm_gpu.cli import output
from slurm_gpu.text import cells
import sys
replace_unencodable(sys.stdout, sys.stderr)
output.print_table(("a", "b"), [(cells.GAP, "정")])
output.print_json({"name": "정 é"})
output.print_csv(("a",), [{"a": "–"}])
output.remark("→ see there")
"""


@pytest.mark.parametrize("encoding", ["latin1", "ascii", "utf-8"])
def test_tables_json_csv_and_remarks_print_in_any_encoding(encoding: str):
    environ = {"PYTHONPATH": str(_ROOT), "PYTHONIOENCODING": encoding, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env=environ, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    document = done.stdout.split(b"{")[1].split(b"}")[0]
    assert json.loads(b"{" + document + b"}") == {"name": "정 é"}
