"""Every table of the paper as cells: what the paper did, what is proved of it, and what stands beside."""
