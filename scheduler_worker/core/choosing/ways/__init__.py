"""Judges of ways, one in each file: by which providers of a host is a request served best, and by which never?"""
