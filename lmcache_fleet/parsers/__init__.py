"""Pure readers of tool outputs and version files: text in, typed data out, never an exception."""
