"""Correlations between the servers, made by oblivious transfer ahead of the rounds."""
