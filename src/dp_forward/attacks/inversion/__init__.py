"""Reading tokens back from what crosses: by the nearest row, by gradients, and by a learned decoder."""
