"""Put this folder on the path: tests in its subfolders import the helper modules beside this file."""
