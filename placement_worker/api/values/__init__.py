"""What requests and answers consist of: headers, problems, versions."""
