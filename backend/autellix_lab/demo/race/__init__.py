"""The page of `autellix demo --watch`: each policy plays the same programs, side by side."""
