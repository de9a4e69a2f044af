"""Converts numbers in English text to spoken words: money, dates, times, fractions, units.

A rule is a pattern and its replacement. normalize.py calls `verbalize` as one step of the normalization.
"""

import re
from collections.abc import Callable

from lm.text import number_words

Rule = Callable[[re.Match[str]], str]

MONTHS = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]
_MONTH_SHORT = {name[:3]: name for name in MONTHS if name != "may"} | {"sept": "september"}
_MONTH = rf"(?:{'|'.join(MONTHS)}|(?:{'|'.join(_MONTH_SHORT)})\b\.?)"

# Units after a number: (singular, plural). The second table applies only without a space between ("5m", "6in").
UNITS = {
    "km": ("kilometer", "kilometers"), "kg": ("kilogram", "kilograms"), "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"), "mg": ("milligram", "milligrams"),
    "ml": ("milliliter", "milliliters"), "lb": ("pound", "pounds"), "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"), "ft": ("foot", "feet"), "mi": ("mile", "miles"), "yd": ("yard", "yards"),
    "yds": ("yard", "yards"), "mph": ("mile per hour", "miles per hour"),
    "mpg": ("mile per gallon", "miles per gallon"), "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"), "m/s": ("meter per second", "meters per second"),
    "hz": ("hertz", "hertz"), "khz": ("kilohertz", "kilohertz"), "mhz": ("megahertz", "megahertz"),
    "ghz": ("gigahertz", "gigahertz"), "kb": ("kilobyte", "kilobytes"), "mb": ("megabyte", "megabytes"),
    "gb": ("gigabyte", "gigabytes"), "tb": ("terabyte", "terabytes"), "kw": ("kilowatt", "kilowatts"),
    "mw": ("megawatt", "megawatts"), "kwh": ("kilowatt hour", "kilowatt hours"), "hrs": ("hour", "hours"),
    "hr": ("hour", "hours"), "min": ("minute", "minutes"), "mins": ("minute", "minutes"),
    "sec": ("second", "seconds"), "secs": ("second", "seconds"), "ms": ("millisecond", "milliseconds"),
    "sq": ("square", "square"),
}  # fmt: skip
GLUED_UNITS = {
    "m": ("meter", "meters"), "g": ("gram", "grams"), "l": ("liter", "liters"), "in": ("inch", "inches"),
    "h": ("hour", "hours"), "v": ("volt", "volts"), "w": ("watt", "watts"),
}  # fmt: skip
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"), "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}  # fmt: skip
SCALES = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "b": "billion",
    "bn": "billion",
    "t": "trillion",
    "tn": "trillion",
}
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_AMOUNT = rf"(?:{_NUMBER}(?:\.\d+)?|\.\d+)"


def _amount(text: str) -> str:
    whole, _, rest = text.replace(",", "").partition(".")
    if rest:
        return number_words.decimal(whole, rest)
    return number_words.cardinal(int(whole)) if "," in text else number_words.integer(whole)


def _money(match: re.Match[str]) -> str:
    one, many, small_one, small_many = CURRENCIES[match["sign"]]
    scale = match["scale"]
    if match["upto"] or scale:
        amounts = " to ".join(_amount(text) for text in (match["amount"], match["upto"]) if text)
        return f" {amounts} {SCALES.get(scale.lower(), scale.lower()) if scale else ''} {many} "
    whole, _, rest = match["amount"].replace(",", "").partition(".")
    if len(rest) not in (0, 2):
        return f" {_amount(match['amount'])} {many} "
    parts = []
    if int(whole or 0) or not int(rest or 0):
        parts.append(f"{number_words.cardinal(int(whole or 0))} {one if int(whole or 0) == 1 else many}")
    if int(rest or 0):
        parts.append(f"{number_words.cardinal(int(rest))} {small_one if int(rest) == 1 else small_many}")
    return f" {' and '.join(parts)} "


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    half = match["half"]
    if hour > 24 or minute > 59 or not (match["minute"] or half):
        return match[0]
    words = number_words.cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{number_words.cardinal(minute)}"
    elif not half:
        words += " o'clock" if 1 <= hour <= 12 else " hundred"
    if half:
        words += f" {half[0].lower()} m"
    return f" {words} "


def _month_name(text: str) -> str:
    name = text.lower().rstrip(".")
    return _MONTH_SHORT.get(name, name)


def _month_day(match: re.Match[str]) -> str:
    if not 1 <= int(match["day"]) <= 31:
        return match[0]
    return f" {_month_name(match['month'])} {number_words.ordinal(int(match['day']))} "


def _day_month(match: re.Match[str]) -> str:
    if not 1 <= int(match["day"]) <= 31:
        return match[0]
    return f" the {number_words.ordinal(int(match['day']))} of {_month_name(match['month'])} "


def _date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    return f" {MONTHS[month - 1]} {number_words.ordinal(day)} {_year(match['year'])} "


def _year(text: str) -> str:
    number = int(text)
    return number_words.year(number) if 1100 <= number <= 2099 else number_words.integer(text)


def _decade(match: re.Match[str]) -> str:
    return f" {number_words.decade(int(match['number']))} "


def _fraction(match: re.Match[str]) -> str:
    above, below = int(match["above"]), int(match["below"])
    if not (0 < above < below and below in (2, 3, 4, 5, 6, 8, 10)):
        return f" {match['whole'] or ''} {match['above']} {match['below']} "
    spoken = number_words.fraction(above, below)
    if not match["whole"]:
        return f" {spoken} "
    if above == 1:
        spoken = ("an " if below == 8 else "a ") + spoken.removeprefix("one ")
    return f" {_amount(match['whole'])} and {spoken} "


def _unit(match: re.Match[str]) -> str:
    name = match["unit"].lower()
    one, many = UNITS.get(name) or GLUED_UNITS[name]
    return f" {_amount(match['amount'])} {one if match['amount'] == '1' else many} "


def _degrees(match: re.Match[str]) -> str:
    scale = {"f": "fahrenheit", "c": "celsius"}.get((match["scale"] or "").lower(), "")
    sign = "minus " if match["sign"] else ""
    return f" {sign}{_amount(match['amount'])} {'degree' if match['amount'] == '1' else 'degrees'} {scale} "


def _telephone(match: re.Match[str]) -> str:
    return f" {number_words.digits(re.sub('[^0-9]', '', match[0]))} "


def _version(match: re.Match[str]) -> str:
    return " point ".join(number_words.integer(part) for part in match[0].split("."))


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _number(match: re.Match[str]) -> str:
    text = match[0]
    if len(text) == 4 and text.isdigit() and 1100 <= int(text) <= 2099:
        return f" {number_words.year(int(text))} "
    return f" {_amount(text)} "


def _either(names: dict[str, tuple[str, str]]) -> str:
    return "|".join(sorted((re.escape(name) for name in names), key=len, reverse=True))


_SCALE = r"(?:\s*(?P<scale>(?:thousand|million|billion|trillion)\b|(?:k|mn?|bn?|tn?)(?![a-z])))?"
_TELEPHONE = r"\b(?:\d{3}[-. ])?\d{3}-\d{4}\b|\(\d{3}\)\s?\d{3}-\d{4}\b"
_DAY_OF_MONTH = rf"\b(?:the\s)?(?P<day>\d\d?)(?:st|nd|rd|th)?\s(?:of\s)?(?P<month>{_MONTH})\b"
_MONTH_DAY = rf"\b(?P<month>{_MONTH})\s(?P<day>\d\d?)(?:st|nd|rd|th)?\b(?![:.,]?\d|\s?[ap]\.?m\b|%)"
_HALF = r"(?P<half>am|pm|a\.m\.?|p\.m\.?)(?![a-z])"
_TIME = rf"\b(?P<hour>\d\d?)(?::(?P<minute>[0-5]\d))?(?::[0-5]\d)?\s?(?:{_HALF})?(?!\d)"
_FRACTION = rf"(?:\b(?P<whole>{_NUMBER})(?:\s|\sand\s|-))?\b(?P<above>\d+)/(?P<below>\d+)\b"
# Applied in order.
RULES: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), rule)
    for pattern, rule in (
        # Very long digit strings come first: the patterns below would backtrack from each of their digits.
        (r"\d[\d.,]{40,}", lambda match: f" {number_words.digits(re.sub('[^0-9]', '', match[0]))} "),
        (rf"(?P<sign>[$£€¥₹])\s?(?P<amount>{_AMOUNT})(?:-(?P<upto>{_AMOUNT}))?{_SCALE}", _money),
        (r"\b(?P<year>[12]\d{3})-(?P<month>\d\d)-(?P<day>\d\d)\b", _date),
        (r"\b(?P<month>\d\d?)/(?P<day>\d\d?)/(?P<year>[12]\d{3})\b", _date),
        (_MONTH_DAY, _month_day),
        (_DAY_OF_MONTH, _day_month),
        (_TIME, _time),
        (r"'?\b(?P<number>\d*[1-9]?0)'?s\b", _decade),
        (_FRACTION, _fraction),
        (_TELEPHONE, _telephone),
        (rf"(?P<sign>(?<![\w)])-)?(?P<amount>{_AMOUNT})\s?°\s?(?:(?P<scale>[fc])\b)?", _degrees),
        (rf"(?P<amount>{_AMOUNT})[\s-]?(?P<unit>{_either(UNITS)})(?![\w'])", _unit),
        (rf"(?P<amount>{_AMOUNT})(?P<unit>{_either(GLUED_UNITS)})(?![\w'])", _unit),
        (rf"({_NUMBER})(?:st|nd|rd|th)\b", lambda match: f" {number_words.ordinal(_integer(match[1]))} "),
        (r"\bno\.\s?(?=\d)", lambda match: " number "),
        (rf"({_AMOUNT})\s?%", lambda match: f" {_amount(match[1])} percent "),
        (r"(?<=\d)-(?=[$£€]?\d)", lambda match: " to "),
        (r"(?<![\w)])-(?=\.?\d)", lambda match: " minus "),
        (r"\b\d+(?:\.\d+){2,}\b", _version),
        (_AMOUNT, _number),
    )
)


def verbalize(text: str) -> str:
    """The text with all numbers as words. Spaces may be added."""
    text = " ".join(text.split())
    for pattern, rule in RULES:
        text = pattern.sub(rule, text)
    return text
