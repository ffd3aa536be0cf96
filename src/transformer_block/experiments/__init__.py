"""What the chapters measure: a module a chapter, with the rows it recorded beside it."""
