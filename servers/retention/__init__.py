"""What a server holds of studies that are over goes for good: when its operator says so, or after a number of days."""
