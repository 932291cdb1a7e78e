"""What a deployed client needs: adapt, predict, generate, export, and notice drift."""
