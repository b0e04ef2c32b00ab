"""Each class has a unique name, so a search for the name finds only one class."""

import ast
from collections import defaultdict
from pathlib import Path

import slurm_gpu

PACKAGE = Path(slurm_gpu.__file__).parent


def test_no_two_classes_of_the_product_have_the_same_name():
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
