"""One short file per verb; `main` puts them together."""
