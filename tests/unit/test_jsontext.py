"""JSON text: every digit kept, every rule broken named."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turndock import jsontext
from turndock.errors import TurndockError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_PF_B25_what_is_written_is_what_is_read(value: Any) -> None:
    text = jsontext.canonical(value)
    read = jsontext.parse(text, "field")
    assert read == value
    assert jsontext.canonical(read) == text


def test_PF_B25_types_and_digits_are_kept() -> None:
    text = '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1,"price":0.1}'
    value = jsontext.parse(text, "field")
    assert [type(value[key]) for key in ("count", "flag", "one", "price")] == [int, bool, int, float]
    assert jsontext.canonical(value) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[1,]", "JSON"),
        ("NaN", "finite"),
        ("[Infinity]", "finite"),
        ("1e999", "finite"),
        ('{"a":1,"a":2}', "twice"),
        ('"\\ud83d"', "surrogate"),
        ('{"\\ude00":1}', "surrogate"),
        ('"a\\u0000b"', "U+0000"),
        ('{"k\\u0000":1}', "U+0000"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_field_and_the_rule(text: str, why: str) -> None:
    with pytest.raises(TurndockError) as refused:
        jsontext.parse(text, "metadata_json")
    assert refused.value.reason == "VALIDATION_ERROR"
    assert refused.value.violations[0].field == "metadata_json"
    assert why in refused.value.message


def test_PF_B27_depth_is_bounded_however_deep_the_text() -> None:
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert jsontext.parse(nested(jsontext.MAX_DEPTH), "field") is not None
    for depth in (jsontext.MAX_DEPTH + 1, 200, 100_000):
        with pytest.raises(TurndockError, match="deeper than 64"):
            jsontext.parse(nested(depth), "field")


def test_an_object_is_an_object() -> None:
    assert jsontext.parse_object("", "field") == {}
    assert jsontext.parse_object('{"a":[1]}', "field") == {"a": [1]}
    with pytest.raises(TurndockError, match="must be a JSON object"):
        jsontext.parse_object("[]", "field")
    jsontext.check_object("", "field")
    jsontext.check("", "field")


def test_canonical_text_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsontext.canonical(float("inf"))


def test_PF_B23_bad_text_is_repaired_visibly() -> None:
    assert jsontext.repair_text("a\0b") == "a\N{REPLACEMENT CHARACTER}b"
    assert jsontext.repair_text("x\ud83d") == "x\N{REPLACEMENT CHARACTER}"
    assert jsontext.repair_text("\ud83d\ude00") == "\N{GRINNING FACE}"
    assert jsontext.repair_text("plain") == "plain"


def test_PF_B23_a_character_split_over_pieces_is_whole() -> None:
    joiner = jsontext.TextJoiner()
    assert [joiner.feed("x\ud83d"), joiner.feed("\ude00y"), joiner.end()] == ["x", "\N{GRINNING FACE}y", ""]
    assert [joiner.feed("\ud83d"), joiner.end()] == ["", "\N{REPLACEMENT CHARACTER}"]


@given(st.text(st.characters(codec=None)), st.data())
def test_pieces_join_to_the_repaired_whole(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    joiner = jsontext.TextJoiner()
    edges = [0, *cuts, len(text)]
    pieces = [joiner.feed(text[start:end]) for start, end in itertools.pairwise(edges)]
    assert "".join([*pieces, joiner.end()]) == jsontext.repair_text(text)


def test_plain_text_checks_name_the_field() -> None:
    jsontext.check_text("fine", "prompt")
    with pytest.raises(TurndockError, match="prompt"):
        jsontext.check_text("a\0", "prompt")


def test_canonical_is_sorted_and_tight() -> None:
    assert jsontext.canonical({"b": [1, "ä"], "a": None}) == '{"a":null,"b":[1,"ä"]}'
    assert json.loads(jsontext.canonical({"b": 1})) == {"b": 1}
