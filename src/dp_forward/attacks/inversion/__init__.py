"""Inversion attacks: which tokens did a text have, given its released matrix?"""
