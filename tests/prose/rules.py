"""The rules for prose that a program can check, and where a passage breaks them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.prose.texts import Passage

LONG_SENTENCE = 35
_REPLACED = {
    r"told|tells?|telling|hears?|heard|foretold|foretells?|foreseen?": "reported, sends, received, predicted",
    r"anew|for ever|of late|ere|hitherto": "again, indefinitely, recently",
    r"beside": "next to, with",
    r"besides": "also, in addition to",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"whoever|somebody|nobody|anybody|none of": "the user, a caller, no user, no job",
    r"(?:an?|the|one|each|every|last|next|first|second|another|two|three|this|that|its|own) looks?|looks": (
        "sample, poll, scan, read, appears"
    ),
    r"(?:hold|holds|held|holding) (?:back|down)": "throttled",
    r"(?:hold|holds|held|holding) (?:\w+ ){0,2}GPUs?|GPUs? (?:\w+ ){0,2}(?:held|hold)": "allocated",
    r"given up|let go|gives? up|lets? go": "dropped, released, abandoned",
    r"go(?:es|ing)? on|stands? still|stood still": "continues, is stalled",
    r"made (?:anew|so)": "recreated, applied",
    r"in place of": "instead of",
    r"for so long|so long at most|at most so (?:many|long|often)|so (?:many|often) at most": "at most N",
    r"hardly meant": "probably unintended",
    r"hatch|crew|pulse|parcels?|shel(?:f|ves)|fares|keepers?": "the term of the glossary",
    r"troubles?": "error",
    r"(?:are|is|be|was|were) away|goes away|went away": "unavailable, unreachable, down",
    r"knows? (?:nothing|no)|known? of nothing": "has no",
    r"(?:slurm|slurmctld|slurmdbd|slurmd|slurm-gpu\w*) (?:says?|knows?|wants?|believes?)": (
        "reports, has, requires, estimates"
    ),
}
_ANY = "|".join(rf"(?P<w{i}>\b(?:{words})\b)" for i, words in enumerate(_REPLACED))
REPLACED = re.compile(_ANY, re.IGNORECASE)
_INSTEAD = list(_REPLACED.values())
_OPENER = re.compile(r"(?:What|Who|Whoever|Whose|Of|Whichever|Whatever) [a-z]")
# A docstring starts with a verb or a noun; in pages and messages a clause may be a condition or a heading.
_DOCSTRING_OPENER = re.compile(r"(?:How|Why|Which|Where|When) [a-z]")
_QUESTION = re.compile(r"\?\s*$")
_SENTENCE_END = re.compile(
    r"(?<=[.!?;:])\s+(?=[A-Z`\"“(])|\n\s*\n(?:[-*•] )?|\n\s*[-*•] "
    # A row of a table: a name, at least two spaces, and its description.
    r"|\n(?=[ \t]*\S+(?: \S+){0,3} {2,}\S)"
)
_CODE = re.compile(r"`[^`\n]+`")
_WORD = re.compile(r"[\w'’%.,/-]*[A-Za-z][\w'’%.,/-]*")


def sentences(text: str) -> list[str]:
    """Split a passage into sentences."""
    return [one for part in _SENTENCE_END.split(text) if (one := " ".join(part.split()))]


def findings(passage: Passage) -> Iterator[tuple[str, str]]:
    """Return (rule, message) for each break of a rule: "word", "opener" or "long"."""
    text = _CODE.sub("`code`", passage.text)
    for match in REPLACED.finditer(text):
        instead = _INSTEAD[int((match.lastgroup or "w0")[1:])]
        yield "word", f"{match[0]!r}: write {instead}"
    for i, sentence in enumerate(sentences(text)):
        is_clause = _OPENER.match(sentence) or (
            i == 0 and passage.is_docstring and _DOCSTRING_OPENER.match(sentence)
        )
        if is_clause and not _QUESTION.search(sentence):
            yield "opener", f"starts with a clause: {sentence[:60]!r}"
        if (n := len(_WORD.findall(sentence))) > LONG_SENTENCE:
            yield "long", f"{n} words: {sentence[:60]!r} …"
