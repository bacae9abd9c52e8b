"""Attacks for the tables of docs/attacks.md only: LiRA, gradient relaxation and a trained decoder."""
