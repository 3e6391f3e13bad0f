"""What every process is made of, and knows nothing of clouds: settings, databases, TLS and passwords, logs, metrics, health, parts, the client of REST APIs."""
