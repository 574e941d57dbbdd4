"""Where images come from: files of known data sets, and one way to walk through any source of images."""
