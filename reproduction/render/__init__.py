"""Results -> docs: `render` writes a page for each table, an index and the figures.

markdown   cells as words, tables as Markdown      ceilings   the best that a cut at `output` can reach
printed    cells that a reader typed in            claims     the paper's abstract beside our cells
figures    charts as PNG                           pages      the text of a page
write      everything onto the disk
"""

from reproduction.render.write import render

__all__ = ["render"]
