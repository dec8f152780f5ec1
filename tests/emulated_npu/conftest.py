"""Put this folder on the path: the tests of its subfolders share the modules beside this file."""
