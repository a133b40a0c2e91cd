"""Reports for people: the page as one file, and traces for Perfetto."""
