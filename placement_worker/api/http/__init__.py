"""The HTTP server: connections, requests that arrive in pieces, and the application that answers them."""
