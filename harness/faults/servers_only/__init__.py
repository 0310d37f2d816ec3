"""Both servers' decisions and stores under accidents on one event loop, with scripted sites: one seed, one order."""
