"""Rendering: results -> a page for each table, an index and the figures."""

from reproduction.render.output_files import render

__all__ = ["render"]
