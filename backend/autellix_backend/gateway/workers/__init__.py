"""Several gateway processes behind one address: what they ask their parent and one another."""
