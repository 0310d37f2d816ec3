"""The page on what was tried to break the system: altered inputs, accidents, load, many rounds."""
