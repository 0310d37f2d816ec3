"""How a site comes into a federation: joined by two invitations, admitted by people, named in the first roster."""
