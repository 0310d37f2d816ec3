"""Pages and curves as text: one self-contained file, no script, nothing loaded from elsewhere."""
