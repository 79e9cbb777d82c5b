"""What a run leaves and shows: its folder, its terminal display, trackers, the model card."""
