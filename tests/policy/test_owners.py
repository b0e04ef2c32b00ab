"""Valid settings of `owners:` in policy.yaml are read, and mistakes are reported."""

from __future__ import annotations

import pytest

from .checking import check, mistakes

WHOLE = """\
version: 1
manages: {qos: [sg-*], accounts: [vision, nlp]}
groups:
  vision: {accounts: [Vision, cv]}
  nlp: {accounts: [nlp]}
  undergrads: {unix_groups: [undergrad]}
owners:
  vision: {gpus: 12, lend_in: sg-scavenger, return_within: 10m}
  nlp: {gpus: 4, lend_in: sg-scavenger, return_within: 30m, qos: SG-own-nlp}
"""


def test_an_owner_is_a_group_of_accounts_with_its_own_qos() -> None:
    vision, nlp = check(WHOLE).owners
    assert (vision.group, vision.accounts, vision.gpus) == ("vision", ("vision", "cv"), 12)
    assert (vision.qos, vision.lend_in, vision.return_within_s) == ("sg-vision", "sg-scavenger", 600)
    assert (nlp.qos, nlp.return_within_s) == ("sg-own-nlp", 1800)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  vision: {gpus", "  visoin: {gpus", "p.yaml:8:3: owner 'visoin' is not a group; did you mean"),
        (
            "  nlp: {gpus",
            "  undergrads: {gpus",
            "a group that owns GPUs must be defined by accounts only, without wildcards, such as",
        ),
        (
            "nlp: {accounts: [nlp]}",
            "nlp: {accounts: [nlp, CV]}",
            "account cv already belongs to owner vision",
        ),
        ("gpus: 12", "gpus: 0", "p.yaml:8:18: gpus: 0 must be a whole number from 1 to 1000000, such as 8"),
        ("gpus: 12", "gpus: 1.5", "gpus: 1.5 must be a whole number"),
        ("gpus: 12, ", "", "vision lacks gpus"),
        ("gpus: 12", "gpus: 12, lends: 3", "'lends' is not a setting of owners.vision"),
        ("10m", "10", "return_within: 10 has no unit; write 10m, 10h"),
        ("12, lend_in: sg-scavenger", "12, lend_in: normal", "jobs without --qos run in normal"),
        (
            "12, lend_in: sg-scavenger",
            "12, lend_in: sg scavenger",
            "'sg scavenger' must be letters, digits, _ . -",
        ),
        ("qos: SG-own-nlp", "qos: sg-vision", "qos sg-vision already belongs to owner vision"),
        ("qos: SG-own-nlp", "qos: sg-scavenger", "p.yaml:9:66: sg-scavenger cannot be the QOS of nlp's own"),
        ("qos: SG-own-nlp", "qos: long", "qos: long is not under manages: qos, so `policy apply` cannot"),
    ],
)
def test_each_mistake_in_owners_is_reported(old: str, new: str, message: str) -> None:
    assert old in WHOLE
    found = mistakes(WHOLE.replace(old, new, 1))
    assert any(message in line for line in found), found


def test_owners_must_be_a_mapping_of_groups() -> None:
    for value in ("8", "[vision]", "{vision: 8}", "{3: {gpus: 1}}"):
        assert mistakes(f"version: 1\nowners: {value}\n")
