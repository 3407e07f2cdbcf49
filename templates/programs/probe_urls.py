"""Asks for URLs, all at once, and prints what went wrong with each. Runs on hosts with whatever python3 they have."""

import json
import ssl
import sys
import threading
import urllib.error
import urllib.request


def probe(url, seconds):
    """What went wrong; None when a server answered, whatever it said short of a fault of its own."""
    # Certificates are the installer's business: pip and uv may trust another store than this interpreter does.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url.rstrip("/") + "/", method="HEAD", headers={"User-Agent": "lmcache-fleet"})
    try:
        urllib.request.urlopen(request, timeout=seconds, context=context).close()
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else "HTTP %d" % error.code
    except urllib.error.URLError as error:
        return str(error.reason)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def main():
    """Read the request, ask, print."""
    request = json.loads(sys.argv[1])
    found = {}

    def ask(url):
        found[url] = probe(url, request["seconds"])

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in request["urls"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(request["seconds"] + 2)
    print(json.dumps({url: found.get(url, "no answer") for url in request["urls"]}))


if __name__ == "__main__":
    main()
