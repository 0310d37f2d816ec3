"""What an operator sees of its server: studies, rounds, the peer, storage, refusals; in a terminal and in a browser."""
