"""Print how many requests vLLM or SGLang works on or has waiting, as JSON; `null` when no engine listens.

Python 3.6 or later.
"""

import json
import re
import sys
import urllib.error
import urllib.request

_LINE = re.compile(
    r"^(?:vllm:num_requests_(?:running|waiting)|sglang:num_(?:running|queue)_reqs)(?:\{.*\})?\s+([0-9.eE+]+)\s*$",
    re.MULTILINE,
)


def main():
    """Ask the metrics page."""
    url = json.loads(sys.argv[1])
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError, ValueError) as error:
        if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
            print("null")
            return 0
        print("error: %s: %s" % (url, getattr(error, "reason", error)), file=sys.stderr)
        return 1
    counts = _LINE.findall(text)
    if not counts:
        print("error: %s has neither vllm:num_requests_running nor sglang:num_running_reqs" % url, file=sys.stderr)
        return 1
    print(json.dumps(int(sum(float(count) for count in counts))))
    return 0


sys.exit(main())
