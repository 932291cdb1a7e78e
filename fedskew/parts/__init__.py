"""The small parts a recipe is made of: what to train, minimise, correct, send and combine."""
