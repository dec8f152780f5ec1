"""The cost of commands, and the time of programs: event by event for one core or many, and by the formula of S2.6."""
