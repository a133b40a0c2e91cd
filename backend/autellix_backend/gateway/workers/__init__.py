"""Several gateway processes behind one address: the messages between them and their parent."""
