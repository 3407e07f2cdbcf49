"""Kinds of prompt."""

from typing import TypedDict


class TokensPrompt(TypedDict, total=False):
    """A prompt that is tokens already."""

    prompt_token_ids: list[int]


class TextPrompt(TypedDict, total=False):
    """A prompt that is text."""

    prompt: str
