"""Code that runs in the confined processes. It imports the standard library only and starts without site-packages."""
