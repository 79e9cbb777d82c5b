"""Which words after a value are its unit. Measures must agree where both answers have them; other nouns say nothing.

A word that changes the value (`13 doubled`, `13 dozen`) must not be a unit. Words are an open class, so a unit has a
measure or a plural noun (`13 red apples`) and no word of the closed classes below.
"""

from __future__ import annotations

import re

from lfpo.rewards.latex import TEXT, plain_latex

# Each line of words has one measure each, with its other names. A plural `s` is dropped before the look-up.
_NAMES = """
mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, m meter metre, km kilometer kilometre,
inch inches, ft foot feet, yd yard, mi mile, mg milligram, g gram, kg kilogram kilo, lb pound, oz ounce, ton tonne,
ml milliliter millilitre, cl centiliter, dl deciliter, l liter litre, gal gallon, pint, qt quart, cup, tsp teaspoon,
tbsp tablespoon, ms millisecond, s sec second, min minute, h hr hour, day, wk week, month, yr year, decade, century
centuries, am, pm, mph, kmh kph, rpm, fps, hz, khz, kw, kwh, gb, mb, kb, tb, usd dollar buck, ct cct cent, eur euro,
gbp, degree deg, celsius, fahrenheit, radian rad, percent, acre, hectare, pt, rs rupee
"""
MEASURES = {word: names.split()[0] for names in _NAMES.split(",") for word in names.split()}
_CURRENCIES = {"\\$": "usd", "€": "eur", "£": "gbp", "¥": "yen"}
# These may follow a digit directly.
_GLUED = {*MEASURES, "in"} - {"m", "g", "l", "s", "h", "pt", "ton", "day", "degree", "cup"}
_NOUNS = frozenset(["people", "men", "women", "children", "fish", "sheep", "mice", "geese", "cattle", "deer", "dice"])
_NUMBER_WORD = re.compile(
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|(?:six|seven|eigh"
    r"|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|[a-z]*illion|dozen|score|gross|googol|lakh"
    r"|crore|grand|half|halve|third|fourth|(?:fif|six|seven|eigh|nin|ten|twelf|twentie|hundred|thousand|[a-z]+illion)th"
    r"|quarter|twice|thrice|once|pair|couple|trio|triplet|brace|fold|basis|power|base|squared?|cubed?|root|log|multiple"
    r"|(?:doubl|tripl|quadrupl|halv|revers|invert|negat|round|repeat|recurr|factor|divid|multipli|rais|complement"
    r"|reciproc)(?:e|ed|ing|al|s)?)s?"
)
_CHANGES = frozenset(
    """
    and or nor but plus minus times over under above below beneath beyond to too from into versus vs out off up down
    not no non never without except if unless than as by with within between before after until till through since
    more less fewer greater smaller least most about around roughly approximately almost nearly some ish
    negative positive equals equal pi e i sqrt sin cos tan cot sec csc ln exp mod modulo max min factorial choose
    inverse infinity inf infinite undefined octal hex hexadecimal binary ternary decimal digits
    """.split()  # noqa: SIM905
) - {"sec", "min"}
_POWER = r"(?:\s*\^\s*\{?\s*(-?[1-3])\s*\}?)?"
_ENDS = r"(?=\s*(?:$|[)\]},;=<>+\-*/:|^]|\\(?:text|times|cdot|div|cup|cap|pm|le|ge|approx)(?![A-Za-z])|\\\\|\\\}))"
_IN_TEXT = re.compile(TEXT.pattern + _POWER + _ENDS)
_TRAILING = re.compile(rf"(?<![A-Za-z\\])([A-Za-z][A-Za-z./]*(?:[\s-]+[A-Za-z][A-Za-z./]*)*){_POWER}$")
_VALUE = re.compile(r"[0-9.})\]!]$|\\pi$|(?<![A-Za-z])[a-z]$")


def is_unit(words: str) -> bool:
    """Whether words name a unit or a counted thing: `cm`, `apples`, `dollars per hour`; not `million`, `below zero`."""
    found = _words(words)
    head = words == "in" or any(measure(w) or w in _NOUNS or (w[-1] == "s" and len(w) > 3) for w in found)
    joined = not found or found[-1] in ("a", "an", "the", "of", "per", "square", "cubic")
    return head and not joined and all(_may_be_in_unit(word) for word in found)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s./()-]+", re.sub(r"\b([ap])\.\s?m\b", r"\1m", text.lower()))


def measure(word: str) -> str:
    """The one name of a measure: `cm` for `Centimetres`; empty for other words."""
    word = word.lower()
    return MEASURES.get(word) or (MEASURES.get(word[:-1], "") if word[-1:] == "s" and len(word) > 2 else "")


def _may_be_in_unit(word: str) -> bool:
    if measure(word) or word in ("of", "an", "in", "a", "square", "sq", "cubic", "cu"):
        return True
    return len(word) > 2 and word.isalpha() and word not in _CHANGES and not _NUMBER_WORD.fullmatch(word)


def without_units(text: str) -> str:
    """The text without the units that follow its values: in `\\text{}` before an operator, and words at the end."""

    def dropped(found: re.Match[str]) -> str:
        return " " if _VALUE.search(text[: found.start()].rstrip()[-4:]) and is_unit(found[1]) else found[0]

    text = _IN_TEXT.sub(dropped, text).strip()
    found = _TRAILING.search(text)
    if found is None or not _VALUE.search(text[: found.start()].rstrip()[-4:]) or not is_unit(found[1]):
        return text
    glued = text[found.start() - 1 : found.start()] != " "
    return text if glued and found[1].lower() not in _GLUED else text[: found.start()].strip()


def measures(text: str) -> frozenset[str]:
    """The measures of a text with their powers, such as `cm2` for `5 square centimetres`."""
    found = {unit for sign, unit in _CURRENCIES.items() if sign in text}
    text = plain_latex(text)
    units = [*_IN_TEXT.finditer(text), *_TRAILING.finditer(text)]
    for words, power in ((f[1].lower(), f[2]) for f in units if is_unit(f[1])):
        power = "2" if re.search(r"\bsq", words) else "3" if re.search(r"\bcu(?:bic)?\b", words) else power or ""
        found |= {measure(word) + power for word in _words(words) if measure(word)}
    return frozenset(found)
