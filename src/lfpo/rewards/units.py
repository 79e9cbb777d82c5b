"""Which words after a number are units. Units are not compared, so a word that changes the value must not be one.

Nouns are an open class (`13 apples`), so a unit is any word that is not in the closed classes below: number words,
prepositions, conjunctions, comparisons and the names of operations.
"""

from __future__ import annotations

import re

from lfpo.rewards.latex import TEXT


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


ABBREVIATIONS = _words(
    "mm cm dm km nm ft yd yds mi sq cu mg kg lb lbs oz ml dl cl gal pt pts qt qts tsp tbsp",
    "hr hrs min mins sec secs ms wk wks yr yrs am pm mph kmh kph rpm fps hz khz kw kwh gb mb kb tb",
    "usd eur gbp rs cc ct cts",
)
LETTERS = frozenset("mglsh")
GLUED = ABBREVIATIONS - {"sq", "cu"} | {"in", "cents"}  # units that may follow a digit without a space
_NUMBER_WORD = re.compile(
    r"(?:zero|one|two|three|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|four|hundred|thousand|[a-z]*illion|dozen|score|gross|googol|lakh|crore|grand|half|halve|third|fourth|fifth|sixth"
    r"|seventh|eighth|ninth|tenth|quarter|twentieth|hundredth|thousandth|[a-z]+illionth|twice|thrice|double|triple)s?"
)
_NOT_UNITS = _words(
    # prepositions, conjunctions and negation
    "and or nor but plus minus times over under above below beneath beyond to too from into versus vs out off up down",
    "not no non never without except if unless than as by with within between before after until till through since",
    # comparison and approximation
    "more less fewer greater smaller least most about around roughly approximately almost nearly some ish",
    "negative positive equals equal",
    # operations and constants
    "pi e i sqrt root sin cos tan cot sec csc log ln exp mod modulo max factorial squared cubed power base choose",
    "inverse infinity inf infinite undefined",
)
_SEPARATORS = re.compile(r"[\s./()\-]+")
_POWER = r"(?:\s*\^\s*\{?\s*-?[1-3]\s*\}?)?"
_IN_TEXT = re.compile(TEXT.pattern + _POWER)
_TRAILING = re.compile(rf"(?<![A-Za-z\\])([A-Za-z][A-Za-z./]*(?:\s+[A-Za-z][A-Za-z./]*)*){_POWER}$")
_VALUE_ENDS = tuple("0123456789.}])!")


def is_unit(words: str) -> bool:
    """Whether words name a unit or a counted thing: `cm`, `apples`, `dollars per hour`; not `million`, `below zero`."""
    found = [word for word in _SEPARATORS.split(words.lower()) if word]
    if not found or found[-1] in ("a", "an", "the", "of", "per", "square", "cubic"):
        return False
    return all(_may_be_unit(word) for word in found)


def _may_be_unit(word: str) -> bool:
    if len(word) == 1:
        return word in LETTERS or word == "a"
    if word in ABBREVIATIONS or word in ("of", "an", "in"):
        return True
    if word in _NOT_UNITS or _NUMBER_WORD.fullmatch(word):
        return False
    return len(word) > 2 and word.isalpha() and any(vowel in word for vowel in ("aeiouy" if len(word) > 3 else "aeiou"))


def without_units(text: str) -> str:
    """The text without the units that follow its values: in `\\text{}` anywhere, and plain words at the end."""
    text = _IN_TEXT.sub(
        lambda found: "" if _follows_value(text, found.start()) and is_unit(found[1]) else found[0], text
    )
    text = text.strip()
    found = _TRAILING.search(text)
    if found is None or not _follows_value(text, found.start()) or not is_unit(found[1]):
        return text
    glued = text[found.start() - 1 : found.start()] != " "
    return text if glued and found[1] not in GLUED else text[: found.start()].strip()


def _follows_value(text: str, position: int) -> bool:
    before = text[:position].rstrip()
    return before.endswith(_VALUE_ENDS) or bool(re.search(r"\\pi$|(?<![A-Za-z])[a-z]$", before[-4:]))
