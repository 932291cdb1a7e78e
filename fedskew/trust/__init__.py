"""What files and users may bring along: code with consent only, plain values, harmless names."""
