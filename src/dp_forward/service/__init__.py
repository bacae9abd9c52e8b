"""The private service: the wire, the server for the back, and the client with the ledger."""
