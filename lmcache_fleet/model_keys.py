"""Which keys a model has at a path inside it, so that a misspelt one can be told with its nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from lmcache_fleet.problems import nearest


def unknown_key(model: type[BaseModel], location: Sequence[str | int]) -> str:
    """What is wrong with a key that its model doesn't have.

    Args:
        model: the model of the whole.
        location: the key's path in it, as pydantic tells it.
    """
    return f"unknown key '{location[-1]}'{nearest(str(location[-1]), keys_at(model, location[:-1]))}"


def keys_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys that may stand at a path; none where no model is.

    Args:
        model: the model of the whole.
        location: a path of keys and list indexes.
    """
    place: Any = model
    for part in location:
        place = _inside(place, part)
    found = _model_in(place)
    return [name for name in found.model_fields if name != "kind"] if found else []


def _inside(annotation: Any, part: str | int) -> Any:
    """What stands under a key or an index of something annotated so; None when nothing can."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return field.annotation if field else None
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _inside(inner[0], part)
    if kind in {Union, UnionType}:
        return next((found for item in inner if (found := _inside(item, part)) is not None), None)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return inner[1]
    if isinstance(kind, type) and issubclass(kind, Sequence) and isinstance(part, int):
        return inner[0]
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Annotated, Union, UnionType}:
        return next((found for item in get_args(annotation) if (found := _model_in(item)) is not None), None)
    return None
