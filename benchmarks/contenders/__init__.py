"""One module per contender, each a child process that answers commands (see protocol.py)."""
