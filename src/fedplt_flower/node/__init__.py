"""A node's side: the client app, the owner's limits, and state that stays on the node."""
