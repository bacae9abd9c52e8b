"""How cells are filled: steps carried out side by side, known by digest, kept as lines of JSON."""
