"""A Flower app: sentences of many users, released once each, and a classifier that is learnt from them."""
