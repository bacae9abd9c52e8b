"""Attacks on releases and on trained backs: membership, inversion, attribute; each with its ceiling."""
