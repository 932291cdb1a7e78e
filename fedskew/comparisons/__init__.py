"""Many runs: run side by side, crossed, selected from, and what they cost."""
