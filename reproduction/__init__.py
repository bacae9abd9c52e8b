"""The paper, table by table: data, runs and rendered results.

subject    the model and the tasks          steps      a piece of work, known by its digest
tables/    every table as cells             runs/      how cells are filled
render/    results -> pages and figures
"""
