"""Published comparisons, run again: suites on top of comparisons, and their pages."""
