"""What commands cost and when they happen: event by event, by the formula of S2.6, and closed forms."""
