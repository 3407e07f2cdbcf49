"""Ask HAProxy's runtime socket; prints a JSON list with the answer to each command. Any python3 since 3.6."""

import json
import socket
import sys


def ask(path, command):
    """One command, one connection: HAProxy closes it after its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(10)
        channel.connect(path)
        channel.sendall(command.encode() + b"\n")
        answer = b""
        while True:
            part = channel.recv(65536)
            if not part:
                return answer.decode(errors="replace")
            answer += part


def main():
    """Ask all, in order."""
    request = json.loads(sys.argv[1])
    try:
        print(json.dumps([ask(request["socket"], command) for command in request["commands"]]))
    except OSError as error:
        print("error: HAProxy's socket %s: %s" % (request["socket"], error.strerror or error), file=sys.stderr)
        return 1
    return 0


sys.exit(main())
