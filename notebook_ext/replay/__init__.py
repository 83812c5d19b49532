"""Replays of an edited cell beside the cell as it is."""
