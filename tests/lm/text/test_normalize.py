"""Text normalization rule by rule. It is idempotent."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.text.normalize import normalize

RULES = {
    "case and punctuation": ('"Well," she SAID: no!', "well she said no"),
    "hyphens and dashes": ("a well-known place—indeed – yes", "a well known place indeed yes"),
    "accents": ("Café naïve Zürich façade Ærøskøbing", "cafe naive zurich facade aeroskobing"),
    "other scripts are dropped": ("tea 名字 please", "tea please"),
    "apostrophe in a word": ("Don’t touch the dog's bone, o'clock", "don't touch the dog's bone o'clock"),
    "plural possessive": ("the boys' coats", "the boys' coats"),
    "quotation marks": ("'Come in,' he said. ''Now''", "come in he said now"),
    "elisions": ("'Tis time to tell 'em", "'tis time to tell 'em"),
    "annotations": ("well [laughter] yes <unk> no", "well yes no"),
    "titles": ("Mr. and Mrs Smith saw Dr. Jones", "mister and missus smith saw doctor jones"),
    "saint or street": ("St. Paul lives on Main St.", "saint paul lives on main street"),
    "initials": ("the U.S. and J. R. R. Tolkien", "the u s and j r r tolkien"),
    "okay": ("OK, O.K. and okay", "okay okay and okay"),
    "abbreviations": ("cats vs. dogs, etc.", "cats versus dogs et cetera"),
    "cardinal": (
        "1,234 and 12345",
        "one thousand two hundred thirty four and twelve thousand three hundred forty five",
    ),
    "zero and large": ("0 and 3000000", "zero and three million"),
    "very long digit strings": ("1234567890", "one two three four five six seven eight nine zero"),
    "leading zeros": ("agent 007", "agent zero zero seven"),
    "ordinal": ("the 1st, 2nd, 12th, 21st, 30th", "the first second twelfth twenty first thirtieth"),
    "years": (
        "in 1905, 1984, 1900, 2000, 2007 and 2024",
        "in nineteen oh five nineteen eighty four nineteen hundred two thousand two thousand seven and "
        "twenty twenty four",
    ),
    "decades": ("1980s, '90s, 1900s", "nineteen eighties nineties nineteen hundreds"),
    "money": ("$1, £3.50, €0.99", "one dollar three pounds and fifty pence ninety nine cents"),
    "large money": ("$5.9 billion or $3m", "five point nine billion dollars or three million dollars"),
    "money ranges": ("$5-10", "five to ten dollars"),
    "money is no year": ("$1984", "one thousand nine hundred eighty four dollars"),
    "percent": ("5% or 2.5 %", "five percent or two point five percent"),
    "decimal": ("3.14 and .5", "three point one four and point five"),
    "versions": ("release 1.2.3", "release one point two point three"),
    "fractions": ("1/2, 3/4, 2 1/2 and 1½", "one half three quarters two and a half and one and a half"),
    "no fraction": ("24/7", "twenty four seven"),
    "times": (
        "10:30 am, 8pm, 5:00, 7:05",
        "ten thirty a m eight p m five o'clock seven oh five",
    ),
    "dates": ("June 1, 2007", "june first two thousand seven"),
    "day before month": ("the 3rd of June and 4 Sept.", "the third of june and the fourth of september"),
    "numeric dates": (
        "2009-06-03, 12/25/2009",
        "june third two thousand nine december twenty fifth two thousand nine",
    ),
    "units": ("5 km, 1 kg, 60mph, 5m", "five kilometers one kilogram sixty miles per hour five meters"),
    "degrees": ("70°F and -5 °C", "seventy degrees fahrenheit and minus five degrees celsius"),
    "ranges": ("pages 10-15, 1990–95", "pages ten to fifteen nineteen ninety to ninety five"),
    "telephone": ("555-1234", "five five five one two three four"),
    "letters and digits": ("COVID-19, Q3, 3D", "covid nineteen q three three d"),
    "signs": ("R&D @ home, 1 + 1 = 2, #7", "r and d at home one plus one equals two number seven"),
    "number": ("No. 5", "number five"),
    "roman numerals": ("Chapter IV, World War II", "chapter four world war two"),
    "rulers": ("Louis XIV and Henry V", "louis the fourteenth and henry the fifth"),
    "the word I": ("Part of what I said to George I know", "part of what i said to george i know"),
    "nothing to say": ("... — !", ""),
}  # fmt: skip


@pytest.mark.parametrize(("written", "spoken"), RULES.values(), ids=RULES)
def test_rule(written: str, spoken: str) -> None:
    assert normalize(written) == spoken


_PIECES = st.sampled_from(
    [
        "mr.", "Mr", "Dr.", "St.", "Main", "I'm", "'tis", "'quoted'", "boys'", "O.K.", "U.S.",
        "Louis", "XIV", "$5", "£3.50", "5%", "1/2", "2½", "10:30", "10:30pm", "1984", "1980s",
        "'90s", "3rd", "June", "12,", "0", "007", "1.2.3", "3.14", "-5", "555-1234", "5km", "70°F",
        "é", "ß", "名", "—", "–", "...", "&", "+", "#", "[x]", "<unk>", "''", "'", "it's", "etc",
    ]
)  # fmt: skip
_WRITTEN = st.one_of(
    st.text(max_size=60), st.lists(st.one_of(_PIECES, st.text(max_size=4)), max_size=9).map(" ".join)
)


@settings(max_examples=300, deadline=None)
@given(_WRITTEN)
def test_normalization_is_idempotent_and_uses_the_alphabet(text: str) -> None:
    once = normalize(text)
    assert re.fullmatch(r"(?:[a-z']+(?: [a-z']+)*)?", once)
    assert normalize(once) == once


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0, max_value=10**35))
def test_every_number_becomes_words(number: int) -> None:
    assert normalize(str(number)).replace(" ", "").isalpha()
    assert normalize(f"{number:,}") != ""


def test_white_space_does_not_matter() -> None:
    assert normalize("  In\t1984,\n it was  ") == normalize("In 1984, it was")


def test_very_long_digit_strings_are_read_digit_by_digit() -> None:
    assert normalize("1" * 60_000) == " ".join(["one"] * 60_000)
    assert normalize("9" * 4_400 + ".5").split() == ["nine"] * 4_400 + ["five"]
