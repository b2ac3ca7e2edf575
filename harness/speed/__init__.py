"""How fast everything is: subjects in processes of their own, timed in turns, and the document of what was found."""
