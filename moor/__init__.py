"""The `moor` command, by which people use and operate Moorage."""
