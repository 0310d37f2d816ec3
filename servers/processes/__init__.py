"""Knowledge that the processes of one server share, where a server is several."""
