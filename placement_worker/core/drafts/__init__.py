"""What a batch has changed so far, beside the part of the books that it was given."""
