"""What a person is asked about a study, and the word that is kept."""
