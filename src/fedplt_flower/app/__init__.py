"""Users' own Flower apps: what they import, and the files of a new app."""
