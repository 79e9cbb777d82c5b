"""Which words after a value are its unit. Measures must agree where both answers have them; other nouns say nothing.

A word that changes the value (`13 doubled`, `13 dozen`) must not be a unit. Words are an open class, so a unit has a
measure or a plural noun (`13 red apples`) and no word of the closed classes below.
"""

import re

from lfpo.rewards.latex import TEXT, plain_latex

# Each line of words has one measure each, with its other names. A plural `s` is dropped before the look-up.
_NAMES = """
mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, m meter metre, km kilometer kilometre,
inch inches in, ft foot feet, yd yard, mi mile, mg milligram, g gram, kg kilogram kilo, lb pound, oz ounce, ton tonne,
ml milliliter millilitre, cl centiliter, dl deciliter, l liter litre, gal gallon, pint, qt quart, cup, tsp teaspoon,
tbsp tablespoon, ms millisecond, s sec second, min minute, h hr hour, day, wk week, month, yr year, decade, century
centuries, am, pm, mph, kmh kph, rpm, fps, hz, khz, kw, kwh, gb, mb, kb, tb, usd dollar buck, ct cct cent, eur euro,
gbp, degree deg, celsius, fahrenheit, radian rad, percent, acre, hectare, pt, rs rupee
"""
MEASURES = {word: names.split()[0] for names in _NAMES.split(",") for word in names.split()}
_CURRENCIES = {"\\$": "usd", "€": "eur", "£": "gbp", "¥": "yen"}
_NOUNS = ("people", "men", "women", "children", "fish", "sheep", "mice", "geese", "cattle", "deer", "dice")
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_BEFORE_NOUNS = (*_POWERS, "a", "an", "of", "per", "the")
# A hyphen stands for any letters, and each word may have a plural `s`. Other words of two letters are no units either.
_CHANGING_WORDS = """
and nor but plus minus times over under above below beneath beyond too from into versus out off down not non never
without except unless than with within between before after until till through since more less fewer greater smaller
least most about around roughly approximately almost nearly some ish negative positive equal sqrt sin cos tan cot csc
exp mod modulo max factorial choose inverse infinity inf infinite undefined octal hex hexadecimal binary ternary
decimal digit zero one two three four five six seven eight nine ten eleven -teen twel- twenty thirty forty fifty sixty
seventy eighty ninety -tieth hundred thousand -illion -illionth half halve third fourth fifth sixth seventh eighth
ninth tenth hundredth thousandth quarter twice thrice once dozen score gross googol lakh crore grand pair couple trio
brace fold basis power base square squared cube cubed root log doubl- tripl- quadrupl- halv- multipl- revers- invert-
negat- round- repeat- recurr- factor factored divide- raise- complement- reciproc-
"""
_CHANGES = re.compile(f"(?:{'|'.join(_CHANGING_WORDS.split()).replace('-', '[a-z]*')})s?")
_POWER = r"(?:\s*\^\s*\{?\s*(-?[1-3])\s*\}?)?"
_ENDS = r"(?=\s*(?:$|[)\]},;=<>+\-*/:|^]|\\(?:text|times|cdot|div|cup|cap|pm|le|ge|approx)(?![A-Za-z])|\\\\|\\\}))"
_IN_TEXT = re.compile(TEXT.pattern + _POWER + _ENDS)
_TRAILING = re.compile(rf"(?<![A-Za-z\\])([A-Za-z][A-Za-z./]*(?:[\s-]+[A-Za-z][A-Za-z./]*)*){_POWER}$")
_VALUE = re.compile(r"[0-9.})\]!]$|\\pi$|(?<![A-Za-z])[a-z]$")


def is_unit(text: str) -> bool:
    """Whether words name a unit or a counted thing: `cm`, `apples`, `dollars per hour`; not `million`, `below zero`."""
    words = _words(text)
    named = any(measure(w) or w in _NOUNS or (w[-1] == "s" and len(w) > 3) for w in words)
    others = [w for w in words if not measure(w) and w not in _BEFORE_NOUNS]
    plain = all(len(w) > 2 and w.isalpha() and not _CHANGES.fullmatch(w) for w in others)
    return named and plain and words[-1] not in _BEFORE_NOUNS


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s./()-]+", re.sub(r"\b([ap])\.\s?m\b", r"\1m", text.lower()))


def measure(word: str) -> str:
    """The one name of a measure: `cm` for `Centimetres`; empty for other words."""
    word = word.lower()
    return MEASURES.get(word) or (MEASURES.get(word[:-1], "") if word[-1:] == "s" and len(word) > 2 else "")


def _units(text: str) -> list[re.Match[str]]:
    """Units in a text: in `\\text{}` before an operator, and words at the end."""
    return [unit for unit in (*_IN_TEXT.finditer(text), *_TRAILING.finditer(text)) if is_unit(unit[1])]


def without_units(text: str) -> str:
    """The text without the units that follow its values."""
    text = text.strip()
    for unit in reversed(_units(text)):
        before, words = text[: unit.start()], unit[1]
        apart = before[-1:] == " " or unit.re is _IN_TEXT or (len(words) > 1 and measure(words))
        if apart and _VALUE.search(before.rstrip()[-4:]):
            text = f"{before} {text[unit.end() :]}".strip()
    return text


def measures(text: str) -> frozenset[str]:
    """The measures of a text with their powers, such as `cm2` for `5 square centimetres`."""
    found = {unit for sign, unit in _CURRENCIES.items() if sign in text}
    for unit in _units(plain_latex(text)):
        words = _words(unit[1])
        power = next((_POWERS[word] for word in words if word in _POWERS), unit[2] or "")
        found |= {measure(word) + power for word in words if measure(word)}
    return frozenset(found)
