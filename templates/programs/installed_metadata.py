"""Print name, version and requirements of every distribution of the running interpreter, as JSON. Changes nothing."""

import importlib.metadata
import json

found = {}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name and name not in found:
        found[name] = {"version": distribution.version, "requires": list(distribution.requires or [])}
print(json.dumps(found))
