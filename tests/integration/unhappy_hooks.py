"""A module of hooks that cannot be imported, for a reason of its own."""

raise ValueError("no luck,\nand a second line")
