"""The parts of docs/results/density-ratio.md: what is run, measured, drawn and told."""
