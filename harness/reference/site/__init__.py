"""The documents as a site: what mkdocs reads, and what is added to it."""
