"""docs/contracts.md names each field that a node ships in a record, and no other."""

import re
from dataclasses import fields

from slurm_gpu.wire import Record

from .pages import DOCS


def test_every_field_of_a_record() -> None:
    section = (DOCS / "contracts.md").read_text().split("\n## 1 Record\n")[1].split("\n### ")[0]
    cells = re.findall(r"^\| (\w[\w ]*?) \|", section, re.MULTILINE)
    assert sorted(" ".join(cells).split()) == sorted(["field", *(field.name for field in fields(Record))])
