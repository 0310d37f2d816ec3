"""The frame of the site's page, its texts, headers and checks of forms.

Needs the extra ``page``; no web framework is imported here.
"""
