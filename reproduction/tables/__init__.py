"""The paper's tables as cells, as far as they can be run here, and what is proved of them."""
