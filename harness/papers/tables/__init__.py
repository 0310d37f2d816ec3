"""Tables of cases in which every site is the requester in turn: by requester, by rule, by metric."""
