"""The explorer: every head of a recording as a map that zooms, in a page on this machine."""
