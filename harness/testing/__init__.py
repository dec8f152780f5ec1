"""Tools for tests of harness, public so that tests of other projects can use them."""
