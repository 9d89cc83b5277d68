"""What has the form of a secret, or is known to be one, is not shown."""

import pytest

from turndock_server.observability import Redactor
from turndock_server.observability.redaction import PATTERNS

EXAMPLES = {
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "url_password": "me:hunter2",
    "aws_access_key": "AKIAIOSFODNN7EXAMPLE",
    "aws_secret_key": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG",
    "anthropic_key": "sk-ant-" + "a" * 24,
    "openai_key": "sk-proj-" + "b" * 24,
    "turndock_token": "tdk_0123abcd_" + "z" * 43,
    "github_token": "ghp_" + "c" * 36,
    "gitlab_token": "glpat-" + "d" * 20,
    "slack_token": "xoxb-" + "1" * 12,
    "stripe_key": "sk_live_" + "e" * 24,
    "google_api_key": "AIza" + "f" * 35,
    "google_oauth_token": "ya29." + "g" * 30,
    "huggingface_token": "hf_" + "h" * 34,
    "npm_token": "npm_" + "i" * 36,
    "pypi_token": "pypi-" + "j" * 40,
    "sendgrid_key": "SG." + "k" * 22 + "." + "l" * 43,
    "azure_key": "AccountKey=" + "m" * 40 + "==",
    "bearer_token": "Bearer n0n0n0n0n0",
    "basic_credentials": "Basic " + "b3BlbnNlc2FtZQ" * 2,
    "password": "password=secret123",
    "api_key": 'api_key: "abc123"',
}


def test_there_is_an_example_of_every_category() -> None:
    assert set(EXAMPLES) == {category for category, _ in PATTERNS}
    assert len(PATTERNS) == 23


@pytest.mark.parametrize("category", EXAMPLES)
def test_a_secret_is_known_by_its_form_and_named_if_asked_to(category: str) -> None:
    example = EXAMPLES[category]
    before, after = ("https://", "@host/x") if category == "url_password" else ("see ", " there")
    text = f"{before}{example}{after}"
    redacted, count = Redactor().count(text)
    assert redacted.replace(']"', "]") == f"{before}[REDACTED]{after}"
    assert count == 1
    assert f"[REDACTED:{category}]" in Redactor(categorized=True)(text)


def test_text_without_a_secret_stays_as_it_is() -> None:
    for text in (
        "",
        "turn_token=7",
        "max_tokens: 100",
        "a basic truth",
        "https://host:7420/x",
        "the bearer of news",
    ):
        assert Redactor().count(text) == (text, 0)


def test_known_values_are_replaced_wherever_they_are_the_longest_first() -> None:
    redactor = Redactor(["hunter2", "hunter2-and-more", "a.c+"])
    assert (
        redactor("x=hunter2-and-more, y=hunter2, z=a.c+, abc+")
        == "x=[REDACTED], y=[REDACTED], z=[REDACTED], abc+"
    )
    assert Redactor(["hunter2"], categorized=True)("hunter2") == "[REDACTED:secret]"


def test_a_value_too_short_to_protect_anything_is_not_looked_for() -> None:
    assert Redactor(["", "abc"])("abc") == "abc"


def test_values_may_be_added_later() -> None:
    redactor = Redactor()
    redactor.add("hunter2")
    assert redactor("hunter2") == "[REDACTED]"


def test_further_patterns_are_custom() -> None:
    redactor = Redactor(patterns=[r"\b(\d)\1{3}\b"], categorized=True)
    assert redactor.count("pin 7777, not 7778") == ("pin [REDACTED:custom], not 7778", 1)


def test_what_overlaps_is_one_secret() -> None:
    redactor = Redactor(["secret123"], patterns=[r"secret\d+ now", r"x*"])
    assert redactor.count("password=secret123 now and then") == ("[REDACTED] and then", 1)
    assert redactor.count("secret123 password=other") == ("[REDACTED] [REDACTED]", 2)
