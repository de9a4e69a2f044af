"""The normalization of English text for training, language models and scoring: a-z, apostrophe, single spaces.

Numbers, dates, units, abbreviations and symbols become spoken words. Normalization is idempotent. formatting.py does
the opposite for finals.
"""

import re
import unicodedata
from collections.abc import Callable

from lm.text import number_words, verbalize

Rule = Callable[[re.Match[str]], str]

# Expanded only before a period, since "gen" or "co" can also be words.
DOTTED_ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "ms": "ms", "dr": "doctor", "prof": "professor", "rev": "reverend",
    "gen": "general", "col": "colonel", "capt": "captain", "lt": "lieutenant", "sgt": "sergeant",
    "maj": "major", "gov": "governor", "sen": "senator", "rep": "representative", "hon": "honorable",
    "jr": "junior", "sr": "senior", "st": "saint", "mt": "mount", "ave": "avenue", "blvd": "boulevard",
    "inc": "incorporated", "ltd": "limited", "co": "company", "corp": "corporation", "dept": "department",
    "approx": "approximately", "vs": "versus", "etc": "et cetera", "messrs": "messieurs", "esq": "esquire",
    "vol": "volume", "cf": "compare",
}  # fmt: skip
# Expanded with or without a period.
ABBREVIATIONS = {
    "mr": "mister", "mrs": "missus", "dr": "doctor", "vs": "versus", "etc": "et cetera", "ok": "okay",
    "prof": "professor", "sgt": "sergeant", "messrs": "messieurs",
}  # fmt: skip
_NUMERALS = (
    "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X",
    "XI", "XII", "XIII", "XIV", "XV", "XVI", "XVII", "XVIII", "XIX", "XX",
)  # fmt: skip
ROMAN = {numeral: value for value, numeral in enumerate(_NUMERALS, start=1)}
_NUMBERED_NOUNS = (
    "chapter|book|part|volume|war|act|scene|section|phase|title|article|type|class|stage|level|bowl|vatican|apollo|"
    "gemini"
)
_MONARCHS = (
    "henry|louis|charles|edward|george|james|william|richard|philip|francis|frederick|napoleon|elizabeth|pius|paul|"
    "leo|gregory|benedict|clement|alexander|nicholas|peter|catherine|ferdinand|leopold|innocent|urban|wilhelm"
)
_CHARACTERS = str.maketrans(
    {
        "’": "'", "‘": "'", "ʼ": "'", "´": "'", "`": "'", "′": "'", "æ": "ae", "Æ": "AE", "œ": "oe",
        "Œ": "OE", "ß": "ss", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d",
        "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "–": "-", "−": "-", "‑": "-", "‐": "-", "—": " ",
        "…": " ", "⁄": "/", "º": "°", "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3",
        "⅛": " 1/8", "⅜": " 3/8", "⅝": " 5/8", "⅞": " 7/8",
    }
)  # fmt: skip
_ELISIONS = {"'tis", "'twas", "'twere", "'twill", "'twould", "'em", "'til", "'cause", "'bout", "'round"}
_SIGNS = {
    "%": " percent ", "&": " and ", "@": " at ", "+": " plus ", "=": " equals ", "#": " number ",
    "№": " number ", "°": " degrees ", "$": " dollars ", "£": " pounds ", "€": " euros ", "×": " times ",
    "÷": " divided by ",
}  # fmt: skip


def _roman(match: re.Match[str]) -> str:
    return f"{match['noun']} {number_words.cardinal(ROMAN[match['roman']])} "


def _monarch(match: re.Match[str]) -> str:
    return f"{match['noun']} the {number_words.ordinal(ROMAN[match['roman']])} "


_ROMAN = rf"(?P<roman>{'|'.join(sorted(ROMAN, key=len, reverse=True))})\b(?!['.-]?\w)"
_ROMAN_RULES: tuple[tuple[re.Pattern[str], Rule], ...] = (
    (re.compile(rf"\b(?P<noun>(?i:{_NUMBERED_NOUNS}))\s{_ROMAN}"), _roman),
    (re.compile(rf"\b(?P<noun>(?i:{_MONARCHS}))\s(?!I\b){_ROMAN}"), _monarch),
)
_STREET = re.compile(r"\b([A-Z][a-z]+ )(St|Dr|Rd)\b\.?(?! ?[A-Z][a-z])")
_STREETS = {"St": "street", "Dr": "drive", "Rd": "road"}
_ANNOTATION = re.compile(r"\[[^\[\]]{2,60}\]|<[^<>\s][^<>]{0,40}>")
_DOTTED_ABBREVIATIONS = re.compile(rf"\b({'|'.join(DOTTED_ABBREVIATIONS)})\.(?!\w)", re.IGNORECASE)
_ABBREVIATIONS = re.compile(rf"(?<![\w'])({'|'.join(ABBREVIATIONS)})(?![\w'])")
_INITIALS = re.compile(r"(?<![\w'])(?:[a-z]\.\s?)+[a-z]\b\.?", re.IGNORECASE)
_OKAY = re.compile(r"\bo\.\s?k\b\.?")
_DIGIT = re.compile(r"\d")
_SIGN = re.compile("[" + "".join(re.escape(sign) for sign in _SIGNS) + "]")
_NOT_SPOKEN = re.compile(r"[^a-z' ]+")
_LOOSE_APOSTROPHE = re.compile(r"(?:(?<![a-z])'|'(?![a-z]))")


def normalize(text: str) -> str:
    """The spoken form of a text in the 28 characters of the models: a-z, apostrophe, single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", unicodedata.normalize("NFC", text).translate(_CHARACTERS))
        text = "".join(mark for mark in text if not unicodedata.combining(mark)).translate(_CHARACTERS)
    if "[" in text or "<" in text:
        text = _ANNOTATION.sub(" ", text)
    text = _STREET.sub(lambda match: match[1] + _STREETS[match[2]], text)
    for pattern, rule in _ROMAN_RULES:
        text = pattern.sub(rule, text)
    if _DIGIT.search(text):
        text = verbalize.verbalize(text)
    text = text.lower()
    if "." in text:
        text = _OKAY.sub("okay", text)
        text = _INITIALS.sub(lambda match: f" {' '.join(re.findall('[a-z]', match[0]))} ", text)
        text = _DOTTED_ABBREVIATIONS.sub(lambda match: f" {DOTTED_ABBREVIATIONS[match[1].lower()]} ", text)
    text = _SIGN.sub(lambda match: _SIGNS[match[0]], text)
    text = _NOT_SPOKEN.sub(" ", text)
    text = _ABBREVIATIONS.sub(lambda match: ABBREVIATIONS[match[1]], text)
    if _LOOSE_APOSTROPHE.search(text):
        return " ".join(word for word in map(_strip_quotes, text.split()) if word)
    return " ".join(text.split())


def _strip_quotes(word: str) -> str:
    """Remove quotation marks: leading apostrophes except in elisions, trailing ones except in "boys'"."""
    while "''" in word:
        word = word.replace("''", "'")
    if word in _ELISIONS:
        return word
    if word.startswith("'"):
        return word.strip("'")
    return word if word.endswith("s'") and len(word) > 3 else word.rstrip("'")
