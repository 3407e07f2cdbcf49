"""Measure the releases under a prefix and print them as JSON. Runs with any python3 since 3.6; changes nothing.

Releases share files by hard links. A release's size counts each file once; what its removal frees are the files whose
every link is in it.
"""

import json
import os
import sys


def measure(folder):
    """[size, freed] of a directory, in bytes on disk."""
    links = {}
    size = freed = 0
    for top, _, files in os.walk(folder):
        for path in [top] + [os.path.join(top, name) for name in files]:
            try:
                seen = os.lstat(path)
            except OSError:
                continue
            taken = seen.st_blocks * 512
            if path == top or seen.st_nlink == 1:
                size += taken
                freed += taken
                continue
            known = links.setdefault((seen.st_dev, seen.st_ino), [0, seen.st_nlink, taken])
            known[0] += 1
    for here, everywhere, taken in links.values():
        size += taken
        freed += taken if here >= everywhere else 0
    return [size, freed]


def main():
    """Measure each release."""
    releases = os.path.join(json.loads(sys.argv[1])["prefix"], "releases")
    names = sorted(os.listdir(releases)) if os.path.isdir(releases) else []
    print(json.dumps({name: measure(os.path.join(releases, name)) for name in names}))


main()
