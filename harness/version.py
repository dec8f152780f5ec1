"""The version of the package, apart so that every module may know it."""

VERSION = "0.1.0"
