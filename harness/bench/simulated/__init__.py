"""What plain simulation costs, beside a loop that somebody would write by hand."""
