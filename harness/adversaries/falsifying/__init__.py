"""A server that falsifies what it puts into the products, and reads from who stays in the sum."""
