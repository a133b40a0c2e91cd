"""The pure scheduling core: events and the time in, decisions out; standard library only."""
