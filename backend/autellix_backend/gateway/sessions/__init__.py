"""The sessions of clients: which run, and the tokens that prove them."""
