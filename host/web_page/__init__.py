"""What the pages of a site and of an operator have in common: their frame, texts, headers and checks of forms.

Needs the extra ``page``; no web framework is imported here.
"""
