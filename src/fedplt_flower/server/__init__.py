"""The server's side: the engine, its connection to the nodes, and Flower server apps."""
