"""A site's policy: its demands of a weight list before it contributes, whoever runs the servers (docs/protocol.md 9).

:class:`SitePolicy` holds the site's own bounds, :class:`SiteMemory` what it remembers from round to round;
:func:`check_weight_list` asks every clause.
"""
