"""Requests over HTTP: connections, envelopes, authentication, and the routes by who calls them."""
