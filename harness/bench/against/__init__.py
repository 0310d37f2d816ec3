"""Other software, measured beside ours."""
