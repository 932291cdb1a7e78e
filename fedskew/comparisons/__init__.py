"""Many runs: run them, cross objectives with aggregators, select rounds, count costs."""
