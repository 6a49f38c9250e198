"""JSON with comments and trailing commas, as published configurations have them."""

from __future__ import annotations

import re

_TOKENS = re.compile(
    r'(?P<text>"(?:\\.|[^"\\\n])*")'
    r"|(?P<block>/\*.*?\*/)"
    r"|(?P<line>(?://|\#)[^\n]*)"
    r"|(?P<comma>,(?=(?:\s|//[^\n]*|\#[^\n]*|/\*.*?\*/)*[}\]]))",
    re.DOTALL,
)


def strict_json(text: str) -> str:
    """The same text with comments and trailing commas blanked, so that positions stay true."""
    return _TOKENS.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    if match["text"] is not None:
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])
