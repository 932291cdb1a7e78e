"""One run on disk: its folder, its numbers, its identity."""
