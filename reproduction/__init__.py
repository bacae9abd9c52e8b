"""The paper's tables and figures: `python -m reproduction`. Not part of the installed package.

jobs     pieces of work, known by digest     model_setup   the model and the tasks of all tables
tables/  every table as cells                runs/         how the jobs behind the cells are run
render/  results -> pages and figures        attacks/      attacks of docs/attacks.md only
"""
