"""Real sites: data stay where they are, and one message a round goes each way."""
