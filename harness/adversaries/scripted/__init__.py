"""Parties that do what a script says: requests, sites, rounds and a requester, against real servers and real agents."""
