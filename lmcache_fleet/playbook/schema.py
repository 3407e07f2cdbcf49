"""The playbook's JSON Schema, for editors: steps as people write them, `- kind: {fields}`."""

from __future__ import annotations

from typing import Any

from lmcache_fleet.playbook.model import STEP_KINDS, Playbook


def playbook_schema() -> dict[str, Any]:
    """The schema of a playbook file.

    Values may be templates wherever they stand, so a field admits a string beside its own type; `by_arch` mappings are
    admitted likewise.
    """
    schema = Playbook.model_json_schema(ref_template="#/$defs/{model}")
    definitions = schema["$defs"]
    for model in STEP_KINDS.values():
        definition = definitions[model.__name__]
        definition["properties"].pop("kind", None)
        if "required" in definition:
            definition["required"] = [name for name in definition["required"] if name != "kind"]
    for definition in definitions.values():
        for name, field in definition.get("properties", {}).items():
            definition["properties"][name] = {"anyOf": [field, _TEMPLATE, _BY_ARCH], **_described(field)}
    schema["properties"]["steps"]["items"] = {
        "oneOf": [
            {
                "type": "object",
                "additionalProperties": False,
                "required": [kind],
                "properties": {kind: {"$ref": f"#/$defs/{model.__name__}"}},
            }
            for kind, model in STEP_KINDS.items()
        ]
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


_TEMPLATE = {"type": "string", "pattern": r"\{\{.*\}\}"}
_BY_ARCH = {"type": "object", "required": ["by_arch"], "properties": {"by_arch": {"type": "object"}}}


def _described(field: dict[str, Any]) -> dict[str, Any]:
    return {name: field[name] for name in ("description", "default") if name in field}
