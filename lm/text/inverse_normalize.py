"""Inverse text normalization: `in nineteen eighty four it cost five dollars` -> `in 1984 it cost $5`.

The inverse of verbalize.py, over words, so that each formatted word refers to its spoken words. Numbers below ten stay
words unless a unit follows ("two men", "5 kilometers").
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lm.text.number_words import ONES, TENS, ordinal, plural
from lm.text.verbalize import MONTHS


@dataclass(frozen=True)
class FormattedWord:
    """A formatted word and the range of spoken words [first, end) that it replaces."""

    text: str
    first: int
    end: int


@dataclass(frozen=True)
class _Number:
    """A parsed number that ends before the word `end`. `kind` is its spoken form, `text` its digits."""

    kind: str  # "cardinal", "ordinal", "year", "digits", "decimal", "decade"
    value: int
    text: str
    end: int


_UNITS = {word: value for value, word in enumerate(ONES)}
_TENS = {word: 10 * value for value, word in enumerate(TENS) if value >= 2}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = {ordinal(value): value for value in (*range(1, 20), *range(20, 100, 10))}
_DECADES = {plural(word): value for word, value in _TENS.items()} | {"tens": 10}
_DIGITS = {word: str(value) for value, word in enumerate(ONES[:10])} | {"oh": "0", "o": "0"}
_CURRENCIES = {"dollar": "$", "dollars": "$", "euro": "€", "euros": "€", "yen": "¥"}
_SMALL_MONEY = {"cent", "cents"}
_MEASURES = {
    "percent", "degrees", "degree", "kilometers", "kilometer", "miles", "mile", "meters", "meter", "centimeters",
    "millimeters", "feet", "foot", "inches", "inch", "kilograms", "kilogram", "grams", "gram", "ounces", "liters",
    "liter", "hertz", "kilohertz", "megahertz", "gigahertz", "megabytes", "gigabytes", "terabytes", "watts",
    "kilowatts", "megawatts", "volts",
}  # fmt: skip
_TIME_BEFORE = {"at", "by", "until", "till", "around", "about", "from", "after", "before", "to", "past"}
_MAX_ALONE = 9
# Names that are written with a digit.
_NAMES = {
    ("three", "d"): "3D", ("two", "d"): "2D", ("co", "two"): "CO2", ("b", "two", "b"): "B2B", ("b", "two", "c"): "B2C",
    ("four", "oh", "one", "k"): "401(k)", ("g", "eight"): "G8", ("five", "g"): "5G", ("four", "g"): "4G",
}  # fmt: skip
_PERIODS = {("q", number) for number in ONES[1:5]} | {("h", number) for number in ONES[1:3]}


def inverse_normalize(words: Sequence[str]) -> list[FormattedWord]:
    """Convert spoken numbers, years, dates, times, money and telephone numbers to digits."""
    formatted: list[FormattedWord] = []
    index = 0
    while index < len(words):
        word = (
            _name(words, index)
            or _time(words, index)
            or _date(words, index)
            or _money(words, index)
            or _plain(words, index)
            or FormattedWord(words[index], index, index + 1)
        )
        formatted.append(word)
        index = word.end
    return formatted


def _name(words: Sequence[str], index: int) -> FormattedWord | None:
    """`three d`, `q one` (the quarter), `co two`."""
    pair = (_word_at(words, index), _word_at(words, index + 1))
    if pair in _PERIODS:
        return FormattedWord(f"{pair[0].upper()}{_UNITS[pair[1]]}", index, index + 2)
    for length in (4, 3, 2):
        text = _NAMES.get(tuple(words[index : index + length]))
        if text:
            return FormattedWord(text, index, index + length)
    return None


def _word_at(words: Sequence[str], index: int) -> str:
    return words[index] if 0 <= index < len(words) else ""


def _below_hundred(words: Sequence[str], index: int) -> tuple[int, int] | None:
    """A cardinal from 0 to 99, and the index after it."""
    word = _word_at(words, index)
    if word in _UNITS:
        return _UNITS[word], index + 1
    if word in _TENS:
        one = _UNITS.get(_word_at(words, index + 1), 0)
        return (_TENS[word] + one, index + 2) if 1 <= one <= 9 else (_TENS[word], index + 1)
    return None


def _cardinal(words: Sequence[str], index: int) -> tuple[int, int] | None:
    """A complete cardinal: groups of up to three digits with decreasing scales. Returns the index after it."""
    total, last_scale, found = 0, 10**15, False
    while True:
        start = index + 1 if found and _word_at(words, index) == "and" else index
        group = _below_thousand(words, start)
        if group is None:
            break
        value, end = group
        scale = _SCALES.get(_word_at(words, end), 1)
        if scale >= last_scale or (found and (value == 0 or last_scale == 1)):
            break
        total, index, last_scale, found = total + value * scale, end + (scale > 1), scale, True
        if scale == 1:
            break
    return (total, index) if found else None


def _below_thousand(words: Sequence[str], index: int) -> tuple[int, int] | None:
    first = _below_hundred(words, index)
    if first is None:
        return None
    value, end = first
    if _word_at(words, end) != "hundred" or not 1 <= value <= 99:
        return first
    value, end = value * 100, end + 1
    skip = end + 1 if _word_at(words, end) == "and" else end
    rest = _below_hundred(words, skip)
    if rest is not None and rest[0] > 0 and _word_at(words, rest[1]) != "hundred":
        return value + rest[0], rest[1]
    return value, end


def _starts_ordinal(words: Sequence[str], index: int) -> bool:
    return _word_at(words, index) in _TENS and _ORDINALS.get(_word_at(words, index + 1), 99) < 10


def _year(words: Sequence[str], index: int) -> tuple[int, int] | None:
    """`nineteen eighty four`, `nineteen oh five`, `twenty ten`, `two thousand seven`."""
    if _word_at(words, index) == "two" and _word_at(words, index + 1) == "thousand":
        skip = index + 3 if _word_at(words, index + 2) == "and" else index + 2
        rest = _below_hundred(words, skip)
        if rest and rest[0] > 0 and _word_at(words, rest[1]) not in ("hundred", *_SCALES):
            return 2000 + rest[0], rest[1]
        return None
    century = _UNITS.get(_word_at(words, index), _TENS.get(_word_at(words, index), 0))
    if not 11 <= century <= 20:
        return None
    following = _word_at(words, index + 1)
    if following in ("oh", "o"):
        one = _UNITS.get(_word_at(words, index + 2), 0)
        return (century * 100 + one, index + 3) if 1 <= one <= 9 else None
    rest = _below_hundred(words, index + 1)
    if rest and rest[0] >= 10 and _word_at(words, rest[1]) not in ("hundred", "point", "percent", *_SCALES):
        return century * 100 + rest[0], rest[1]
    return None


def _number(words: Sequence[str], index: int) -> _Number | None:
    """The longest number that starts at this index."""
    end = index
    while _word_at(words, end) in _DIGITS and not (end == index and _word_at(words, end) in ("o", "oh")):
        end += 1
    if end - index >= 3 and _word_at(words, end) not in _SCALES and _word_at(words, end) != "hundred":
        return _Number("digits", 0, "".join(_DIGITS[word] for word in words[index:end]), end)
    year = _year(words, index)
    if year:
        return _Number("year", year[0], str(year[0]), year[1])
    decade = _decade(words, index)
    if decade:
        return decade
    cardinal = _cardinal(words, index)
    if cardinal is None:
        value = _ORDINALS.get(_word_at(words, index))
        return None if value is None else _Number("ordinal", value, _ordinal_text(value), index + 1)
    value, end = cardinal
    last = _ORDINALS.get(_word_at(words, end), 0)
    if _starts_ordinal(words, end - 1) and 1 <= last <= 9:
        return _Number("ordinal", value + last, _ordinal_text(value + last), end + 1)
    if value % 100 == 0 and value > 0 and last:
        return _Number("ordinal", value + last, _ordinal_text(value + last), end + 1)
    if _word_at(words, end) == "point" and _word_at(words, end + 1) in _DIGITS:
        stop = end + 1
        while _word_at(words, stop) in _DIGITS:
            stop += 1
        fraction = "".join(_DIGITS[word] for word in words[end + 1 : stop])
        scale = f" {words[stop]}" if _word_at(words, stop) in _SCALES else ""
        return _Number("decimal", value, f"{value:,}.{fraction}{scale}", stop + bool(scale))
    as_hundreds = end - index == 2 and 1100 <= value <= 1900
    return _Number("cardinal", value, str(value) if as_hundreds else _cardinal_text(value), end)


def _decade(words: Sequence[str], index: int) -> _Number | None:
    """`nineteen eighties` and `eighteen hundreds`; `the eighties` stays a word."""
    century = _UNITS.get(_word_at(words, index), _TENS.get(_word_at(words, index), 0))
    following = _word_at(words, index + 1)
    if 11 <= century <= 20 and (following in _DECADES or following == "hundreds"):
        value = century * 100 + _DECADES.get(following, 0)
        return _Number("decade", value, f"{value}s", index + 2)
    return None


def _cardinal_text(value: int) -> str:
    for name, scale in reversed(_SCALES.items()):
        if scale >= 10**6 and value >= scale and value % (scale // 10) == 0:
            whole, rest = divmod(value, scale)
            return f"{whole:,}{'.' + str(rest * 10 // scale) if rest else ''} {name}"
    return f"{value:,}"


def _ordinal_text(value: int) -> str:
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value:,}{ending}"


def _time(words: Sequence[str], index: int) -> FormattedWord | None:
    """`ten thirty a m`, `eight p m`, `at seven oh five`, `five o'clock`."""
    hour = _UNITS.get(_word_at(words, index), 99)
    if not 1 <= hour <= 12:
        return None
    end, minutes = index + 1, ""
    if _word_at(words, end) in ("oh", "o") and 1 <= _UNITS.get(_word_at(words, end + 1), 0) <= 9:
        minutes, end = f"0{_UNITS[words[end + 1]]}", end + 2
    else:
        minute = _below_hundred(words, end)
        if minute and 10 <= minute[0] <= 59:
            minutes, end = str(minute[0]), minute[1]
    if _word_at(words, end) in ("a", "p") and _word_at(words, end + 1) == "m":
        return FormattedWord(
            f"{hour}{':' + minutes if minutes else ''} {words[end].upper()}M", index, end + 2
        )
    if _word_at(words, end) == "o'clock" and not minutes:
        return FormattedWord(f"{hour} o'clock", index, end + 1)
    following = _word_at(words, end)
    other_number = following in {*_SCALES, *_MEASURES, *_DIGITS, *_CURRENCIES, "hundred", "point"}
    if minutes and _word_at(words, index - 1) in _TIME_BEFORE and not other_number:
        return FormattedWord(f"{hour}:{minutes}", index, end)
    return None


def _date(words: Sequence[str], index: int) -> FormattedWord | None:
    """`june first two thousand seven`, `the third of june`."""
    month = _word_at(words, index)
    if month in MONTHS:
        day = _number(words, index + 1)
        if day is None or day.kind != "ordinal" or day.value > 31:
            return None
        text, end = f"{month.capitalize()} {day.value}", day.end
        year = _year(words, end)
        return (
            FormattedWord(f"{text}, {year[0]}", index, year[1]) if year else FormattedWord(text, index, end)
        )
    return None


def _money(words: Sequence[str], index: int) -> FormattedWord | None:
    """`five dollars and twenty five cents`, `five point nine billion dollars`."""
    amount = _number(words, index)
    if amount is None or amount.kind not in ("cardinal", "decimal", "year"):
        return None
    sign = _CURRENCIES.get(_word_at(words, amount.end))
    if sign is None:
        return None
    text = f"{amount.value:,}" if amount.kind == "year" else amount.text
    end = amount.end + 1
    skip = end + 1 if _word_at(words, end) == "and" else end
    small = _below_hundred(words, skip)
    if amount.kind != "decimal" and small and _word_at(words, small[1]) in _SMALL_MONEY:
        return FormattedWord(f"{sign}{amount.value:,}.{small[0]:02d}", index, small[1] + 1)
    return FormattedWord(f"{sign}{text}", index, end)


def _plain(words: Sequence[str], index: int) -> FormattedWord | None:
    """Any other number, unless it stays a word."""
    number = _number(words, index)
    if number is None:
        return None
    following = _word_at(words, number.end)
    if number.kind in ("cardinal", "decimal") and following == "percent":
        return FormattedWord(f"{number.text}%", index, number.end + 1)
    if number.kind in ("cardinal", "decimal") and following in ("degrees", "degree"):
        scale = {"fahrenheit": "F", "celsius": "C"}.get(_word_at(words, number.end + 1))
        if scale:
            return FormattedWord(f"{number.text}°{scale}", index, number.end + 2)
    if number.kind == "digits":
        return FormattedWord(_telephone(number.text), index, number.end)
    small = number.value <= _MAX_ALONE and number.kind in ("cardinal", "ordinal")
    if small and following not in _MEASURES and number.end - index == 1:
        return None
    return FormattedWord(number.text, index, number.end)


def _telephone(digits: str) -> str:
    if len(digits) == 7:
        return f"{digits[:3]}-{digits[3:]}"
    if len(digits) == 10:
        return f"{digits[:3]}-{digits[3:6]}-{digits[6:]}"
    return digits
