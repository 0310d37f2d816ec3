"""``moiety bench tags``: what tags cost at a site."""
