"""REST APIs of other programs, such as Ironic and Nova, over HTTP: one client, which logs in, bounds each request, and tries again.

settings.py   what a service's section of settings has for its client.
answers.py    an answer, and the error in it.
login.py      basic authentication, Keystone's tokens, certificates.
client.py     the client itself.
"""
