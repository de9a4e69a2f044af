"""Figures to spoken words: cardinals, ordinals, years, digit strings, decimals, money.

Only the arithmetic of saying a number; which number stands in a text, and of what kind, is for figures.py.
"""

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SCALES = (
    "",
    "thousand",
    "million",
    "billion",
    "trillion",
    "quadrillion",
    "quintillion",
    "sextillion",
    "septillion",
    "octillion",
    "nonillion",
)
LARGEST_DIGITS = 3 * len(SCALES)
IRREGULAR_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
FRACTION_NAMES = {2: "half", 4: "quarter"}


def cardinal(number: int) -> str:
    """`1234` -> "one thousand two hundred thirty four"."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number == 0:
        return "zero"
    if len(str(number)) > LARGEST_DIGITS:
        return digits(str(number))
    words: list[str] = []
    groups = f"{number:,}".split(",")
    for place, group in enumerate(groups):
        value = int(group)
        if value:
            scale = SCALES[len(groups) - 1 - place]
            words.append(_below_thousand(value))
            if scale:
                words.append(scale)
    return " ".join(words)


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10])
        rest %= 10
    if rest:
        words.append(ONES[rest])
    return " ".join(words)


def ordinal(number: int) -> str:
    """`21` -> "twenty first"."""
    return ordinal_of(cardinal(number))


def ordinal_of(words: str) -> str:
    """The ordinal of a spoken cardinal: "forty two" -> "forty second"."""
    *before, last = words.split()
    if last in IRREGULAR_ORDINALS:
        last = IRREGULAR_ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return " ".join([*before, last])


def year(number: int) -> str:
    """`1905` -> "nineteen oh five", `2007` -> "two thousand seven", `2024` -> "twenty twenty four"."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


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
    """`"007"` -> "zero zero seven": every digit by name."""
    return " ".join(ONES[int(digit)] for digit in text)


def integer(text: str) -> str:
    """A run of digits as it would be read: digit by digit after a leading zero or when very long."""
    if (len(text) > 1 and text[0] == "0") or len(text) > 9:
        return digits(text)
    return cardinal(int(text))


def decimal(whole: str, fraction: str) -> str:
    """`("3", "14")` -> "three point one four"; without a whole part "point five"."""
    spoken = f"point {digits(fraction)}"
    return f"{cardinal(int(whole))} {spoken}" if whole else spoken


def fraction(numerator: int, denominator: int) -> str:
    """`3, 4` -> "three quarters"."""
    name = FRACTION_NAMES.get(denominator) or ordinal(denominator)
    if numerator != 1:
        name = "halves" if denominator == 2 else name + "s"
    return f"{cardinal(numerator)} {name}"
