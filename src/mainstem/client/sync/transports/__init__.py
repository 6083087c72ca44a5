"""Ways to a server: HTTP, a WebSocket, or within the process."""
