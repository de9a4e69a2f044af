"""Numbers as words, on top of num2words: cardinals, ordinals, years, decades, digits, decimals, fractions.

The words have no hyphens, commas or "and". verbalize.py finds the numbers in a text and their kind.
"""

from functools import lru_cache

from num2words import num2words

MAX_CARDINAL = 10**33
"""Larger numbers are read digit by digit."""


@lru_cache(maxsize=4096)
def _words(number: int, kind: str) -> str:
    text = str(num2words(number, to=kind)).replace("-", " ").replace(",", "")
    return " ".join(word for word in text.split() if word != "and")


def cardinal(number: int) -> str:
    """`1234` -> "one thousand two hundred thirty four"."""
    return _words(number, "cardinal") if number < MAX_CARDINAL else digits(str(number))


def ordinal(number: int) -> str:
    """`21` -> "twenty first"."""
    return _words(number, "ordinal")


def year(number: int) -> str:
    """`1905` -> "nineteen oh five", `2007` -> "two thousand seven", `2024` -> "twenty twenty four"."""
    return _words(number, "year")


ONES = [cardinal(number) for number in range(20)]
TENS = [cardinal(number) for number in range(0, 100, 10)]
FRACTION_NAMES = {2: "half", 4: "quarter"}


def decade(number: int) -> str:
    """`1980` -> "nineteen eighties", `1900` -> "nineteen hundreds", `80` -> "eighties"."""
    *before, last = (year(number) if number >= 1000 else cardinal(number)).split()
    return " ".join([*before, plural(last)])


def plural(word: str) -> str:
    """The plural of a number word: "eighty" -> "eighties", "six" -> "sixes", "five" -> "fives"."""
    if word.endswith("y"):
        return word[:-1] + "ies"
    if word.endswith("x"):
        return word + "es"
    return word + "s"


def digits(text: str) -> str:
    """`"007"` -> "zero zero seven"."""
    return " ".join(ONES[int(digit)] for digit in text)


def integer(text: str) -> str:
    """A cardinal, or digit by digit with a leading zero or more than nine digits."""
    if (len(text) > 1 and text[0] == "0") or len(text) > 9:
        return digits(text)
    return cardinal(int(text))


def decimal(whole: str, fraction: str) -> str:
    """`("3", "14")` -> "three point one four"; `("", "5")` -> "point five"."""
    spoken = f"point {digits(fraction)}"
    return f"{cardinal(int(whole))} {spoken}" if whole else spoken


def fraction(numerator: int, denominator: int) -> str:
    """`3, 4` -> "three quarters"."""
    name = FRACTION_NAMES.get(denominator) or ordinal(denominator)
    if numerator != 1:
        name = "halves" if denominator == 2 else name + "s"
    return f"{cardinal(numerator)} {name}"
