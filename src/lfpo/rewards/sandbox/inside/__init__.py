"""What runs inside the sandbox: the standard library only, started without site-packages."""
