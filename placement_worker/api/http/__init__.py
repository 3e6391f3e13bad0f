"""The HTTP server: connections, requests in parts, and the application that answers them."""
