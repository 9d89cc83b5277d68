"""Takes secrets out of texts: those that are known by value, and what has the form of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

PLACEHOLDER: Final = "[REDACTED]"
MIN_SECRET_CHARACTERS: Final = 4
"""A known secret shorter than this is not looked for: it would tear every text to pieces, and protects nothing."""

_KEY = r"api[_-]?key|access[_-]?key|client[_-]?secret|secret[_-]?key|secret|access[_-]?token|auth[_-]?token|token"
_ASSIGNED = r"""["']?\s*[=:]\s*["']?[^\s"',;&}]+"""

PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    ("private_key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----)?"),
    ("jwt", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
    ("url_password", r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),
    ("aws_access_key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("aws_secret_key", rf"(?i:aws_secret_access_key){_ASSIGNED}"),
    ("anthropic_key", r"\bsk-ant-[\w-]{16,}"),
    ("openai_key", r"\bsk-[\w-]{16,}"),
    ("turndock_token", r"\btdk_[0-9a-f]{8}_[\w-]{20,}"),
    ("github_token", r"\b(?:gh[opsur]_|github_pat_)\w{20,}"),
    ("gitlab_token", r"\bglpat-[\w-]{16,}"),
    ("slack_token", r"\bxox[abeoprs]-[\w-]{10,}"),
    ("stripe_key", r"\b[prs]k_(?:live|test)_\w{10,}"),
    ("google_api_key", r"\bAIza[\w-]{35}"),
    ("google_oauth_token", r"\bya29\.[\w.-]{10,}"),
    ("huggingface_token", r"\bhf_[A-Za-z0-9]{20,}"),
    ("npm_token", r"\bnpm_\w{30,}"),
    ("pypi_token", r"\bpypi-[\w-]{16,}"),
    ("sendgrid_key", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
    ("azure_key", r"\bAccountKey=[A-Za-z0-9+/=]{20,}"),
    ("bearer_token", r"\b(?i:bearer)\s+[\w.~+/-]{8,}=*"),
    ("basic_credentials", r"\b(?i:basic)\s+[A-Za-z0-9+/]{16,}=*"),
    ("password", rf"\b(?i:password|passwd|passphrase|pwd){_ASSIGNED}"),
    ("api_key", rf"\b(?i:{_KEY}){_ASSIGNED}"),
)
"""Category → what a secret of it looks like. The first that matches at a place names what is there."""

_ANY: Final = re.compile("|".join(f"(?P<{category}>{pattern})" for category, pattern in PATTERNS))


def has_secret_form(text: str) -> bool:
    """Whether something in the text looks like a secret."""
    return _ANY.search(text) is not None


class Redactor:
    """Replaces secrets in texts.

    `secrets`: values that must never be shown. `patterns`: further regular expressions. `categorized`: say what was
    there, as `[REDACTED:aws_access_key]`; a known value is a `secret`, a match of `patterns` is `custom`.
    """

    def __init__(
        self, secrets: Iterable[str] = (), *, patterns: Iterable[str] = (), categorized: bool = False
    ) -> None:
        self._categorized = categorized
        self._custom = [re.compile(pattern) for pattern in patterns]
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Have further values replaced from now on."""
        self._secrets.update(secret for secret in secrets if len(secret) >= MIN_SECRET_CHARACTERS)
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """The text without its secrets."""
        return self.count(text)[0]

    def count(self, text: str) -> tuple[str, int]:
        """The text without its secrets, and how many it had. What overlaps is one secret, named after its beginning."""
        found = sorted(self._find(text))
        if not found:
            return text, 0
        pieces: list[str] = []
        total = end = 0
        for start, backwards, category in found:
            stop = -backwards
            if start >= end:
                pieces += text[end:start], self._placeholder(category)
                total += 1
            end = max(end, stop)
        pieces.append(text[end:])
        return "".join(pieces), total

    def _find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where a secret begins, minus where it ends, and what it is: sorted, the longest one comes first."""
        if self._known is not None:
            for match in self._known.finditer(text):
                yield match.start(), -match.end(), "secret"
        for match in _ANY.finditer(text):
            yield match.start(), -match.end(), match.lastgroup or "secret"
        for pattern in self._custom:
            for match in pattern.finditer(text):
                if match[0]:
                    yield match.start(), -match.end(), "custom"

    def _placeholder(self, category: str) -> str:
        return f"[REDACTED:{category}]" if self._categorized else PLACEHOLDER
