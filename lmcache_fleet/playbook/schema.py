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


def reference() -> str:
    """The playbook reference as Markdown: every step kind with its fields."""
    lines = ["# Playbook reference", "", "Written by `lmcache-fleet schema --markdown`; a test keeps it so.", ""]
    lines += ["Steps run in the order written. Any value may be a template over `vars`, `arch`, `prefix` and `host`;"]
    lines += ["`{by_arch: {x86_64: …, aarch64: …}}` may stand for any value, and is spliced inside a list.", ""]
    schema = Playbook.model_json_schema()
    definitions = schema["$defs"]
    titles = {"Playbook": "Top level", **{model.__name__: f"Step `{kind}`" for kind, model in STEP_KINDS.items()}}
    others = [name for name in definitions if name not in titles]
    for name in [*titles, *others]:
        definition = schema if name == "Playbook" else definitions[name]
        about = str(definition.get("description", "")).split("\n\n", maxsplit=1)[0]
        lines += [f"## {titles.get(name, name)}", "", about, ""]
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        for key, field in definition["properties"].items():
            if key == "kind":
                continue
            default = f"`{field['default']!r}`" if "default" in field else "required"
            about = field.get("description", "")
            kind = "list of steps" if (name, key) == ("Playbook", "steps") else _type(field)
            lines.append(f"| `{key}` | {kind} | {default if len(default) < 40 else 'empty'} | {about} |")
        lines.append("")
    return "\n".join(lines)


def _type(field: dict[str, Any]) -> str:
    """A field's type in words, from its JSON Schema."""
    if "$ref" in field:
        return str(field["$ref"]).rsplit("/", 1)[1]
    if "anyOf" in field:
        return " or ".join(_type(item) for item in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{item}`" for item in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    if kind == "object":
        values = field.get("additionalProperties")
        return f"mapping to {_type(values)}" if isinstance(values, dict) else "mapping"
    return {"null": "nothing"}.get(kind, kind)
