"""Campaigns: visits, repeats, the journal of samples."""
