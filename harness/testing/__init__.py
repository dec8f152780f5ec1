"""What tests of harness are built with, public so that others' tests can use it, too."""
