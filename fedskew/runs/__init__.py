"""One run on disk: what its folder holds, and the one way to read it."""
