"""The paper, table by table: data, runs and rendered results.

convention   the paper's settings, read twice: as it calls them, and as they are proved
subject      the model and the tasks            tables     what a table is
about_*      the tables themselves              catalogue  all of them by name
steps        a piece of work, known by digest   kinds      how each kind is carried out
shelf        texts, read once                   workers    many steps side by side
store        results as JSON lines              render     results -> docs
"""
