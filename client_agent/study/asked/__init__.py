"""The question about a study that a person is asked, and the word that is kept."""
