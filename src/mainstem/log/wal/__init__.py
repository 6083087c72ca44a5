"""The files of frames: how they are named, the thread that writes them, and what it tells the loop."""
