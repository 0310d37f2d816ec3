"""Messages that servers refuse, one function each; the catalogue says which defence refuses them."""
