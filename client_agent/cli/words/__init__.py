"""A person's words on studies, from the command line."""
