"""Ways to show what heads do: in a terminal, in figures, on a page."""
