"""What servers bear: many sites in one study, many that wait for one, and one study of many rounds."""
